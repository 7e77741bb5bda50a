"""Jobs: series of runs and their machines, `bench`, `tune`, `advise`."""
