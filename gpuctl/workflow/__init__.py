"""The steps of commands: jobs, clusters, runs, machines, from a spec to results."""
