"""Provider `local`: hosts on this machine."""
