"""What came of a run: its result, metrics, failures, exports."""
