"""The file that describes a cluster or a job: read, checked, and with defaults."""
