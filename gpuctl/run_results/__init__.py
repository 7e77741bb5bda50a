"""A run's result: metrics, failures, outputs, loss curves, exports. Pure, but for reading the run's folder."""
