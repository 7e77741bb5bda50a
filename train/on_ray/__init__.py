"""The built-in job in Ray's workers."""
