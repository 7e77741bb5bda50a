"""What is kept on disk: the store, its journal and locks, how files are written."""
