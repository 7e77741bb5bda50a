"""EC2 over HTTP for real clients: moto, and a proxy that adds what moto lacks.

`python -m tests.fakes.aws_proxy --port 0` prints one line of JSON with the URL and the environment of a
client. Instances, what hangs on them and client tokens are the proxy's own; networks, rules and keys are
moto's, guarded by the conflicts of the real service. Nothing here talks to a cloud.
"""
