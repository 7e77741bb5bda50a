"""Measurements of the job, and how they are written."""
