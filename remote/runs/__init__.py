"""Active runs: how they are followed, collected and stopped."""
