"""What the job measures and reports."""
