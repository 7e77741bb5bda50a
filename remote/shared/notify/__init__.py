"""Notifications (`--notify`): their targets, their text and their delivery, the same on both sides."""
