"""A report of runs: one HTML file with their table, pictures, and a section on each run."""
