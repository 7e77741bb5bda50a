"""Jobs: runs in a row on machines that are started for them, benchmarks, searches, advice."""
