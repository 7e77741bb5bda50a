"""Amazon Web Services: EC2 instances in gpuctl's VPC, or in an existing subnet.

`description` has the facts that need no account, `cloud` is the entry. Pure functions in `requests` make the
requests, `api` sends them and raises errors of `provision.errors`.
"""
