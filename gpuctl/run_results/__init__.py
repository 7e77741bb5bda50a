"""A run's result: metrics, failures, outputs, loss curves, exports. Pure, but for `read_run` and `saved_results`."""
