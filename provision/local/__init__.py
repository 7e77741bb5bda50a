"""Provider `local`: hosts on this computer, for tests and trials."""
