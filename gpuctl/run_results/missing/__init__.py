"""Advice on a file, a module, a repository or a setting that a rank did not find on its node."""
