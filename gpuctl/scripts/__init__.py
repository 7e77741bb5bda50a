"""The user's script: its sources and arguments."""
