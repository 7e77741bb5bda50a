"""A script as a user's, for a RayJob: a task on a worker's pod."""

import socket

import ray


@ray.remote
def name() -> str:
    """Where it runs."""
    return socket.gethostname()


ray.init()
print(f"from {ray.get(name.remote())} to {socket.gethostname()}")
