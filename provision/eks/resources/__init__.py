"""What there is of ours beside EC2's resources, by tag and by name; and its removal."""
