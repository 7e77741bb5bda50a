"""Rented machines on any cloud: the interface that a cloud implements, and everything that clouds share."""
