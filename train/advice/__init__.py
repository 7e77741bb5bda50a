"""What a job would need on machines that nobody has rented yet: memory, time and money, by arithmetic."""
