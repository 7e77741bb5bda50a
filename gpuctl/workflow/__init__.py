"""What commands do: jobs, clusters, runs, machines, from a spec to results."""
