"""Amazon Web Services: EC2 instances in a VPC of ours, or in a subnet that is there already.

`description` is what is known without an account, `cloud` the way in. Requests are made by pure functions in
`requests`, sent by `api`, whose errors are those of `provision.errors`.
"""
