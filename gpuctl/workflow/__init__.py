"""What strings the stations together: spec → plan → machines → ready nodes → run → results."""
