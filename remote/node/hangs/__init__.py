"""What each rank is doing, asked of a rank that may hang; and the watch that notices that it does."""
