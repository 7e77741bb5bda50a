"""Clean: what may be removed from nodes and this computer, and its removal."""
