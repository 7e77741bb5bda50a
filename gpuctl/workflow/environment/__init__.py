"""What a run's ranks find installed: decided here, and made on the nodes."""
