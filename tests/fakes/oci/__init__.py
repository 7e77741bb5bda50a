"""Oracle Cloud Infrastructure over HTTP, for the real `oci` SDK and command line.

`python -m tests.fakes.oci --port 0` prints one line of JSON with the URL and the environment of a client.
Requests are checked against the SDK's own clients and models, signatures are verified, and resources live
and die with the delays and the conflicts of the real one. Nothing here talks to a cloud.
"""
