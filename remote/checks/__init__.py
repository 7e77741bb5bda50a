"""What a node is, and whether a run can start on it: facts, readiness, preflight."""
