"""Which image machines boot from."""
