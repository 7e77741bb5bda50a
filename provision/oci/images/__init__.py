"""The choice of the image that machines boot from."""
