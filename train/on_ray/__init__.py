"""The job in Ray's workers."""
