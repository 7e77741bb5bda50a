"""What keeps things in order: doctor, clean."""
