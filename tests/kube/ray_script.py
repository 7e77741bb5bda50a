"""A script as a user's, for a RayJob: a task on a worker's pod."""

import socket

import ray


@ray.remote
def name() -> str:
    """Return the name of the host that runs the task."""
    return socket.gethostname()


ray.init()
print(f"from {ray.get(name.remote())} to {socket.gethostname()}")
