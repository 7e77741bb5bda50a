"""The plan of `up` for rented machines: request, checks, existing resources, prices."""
