"""Machines: connect, set up, open firewalls; `exec`, `ssh`, `push`, `pull`, `fab`, `top`, `ray`."""
