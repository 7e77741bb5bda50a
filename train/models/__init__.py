"""The networks of the built-in job."""
