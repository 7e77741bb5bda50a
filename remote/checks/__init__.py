"""The state of a node, and whether a run can start: facts, readiness, preflight."""
