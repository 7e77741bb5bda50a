"""The start of a run's part on this node: its supervisor, and the processes that watch it."""

from pathlib import Path
from typing import Any, Dict

from remote.node.hangs import watch as hang_watch
from remote.node.runs import gpu_watch, supervisor, usage


def start(launch: Dict[str, Any]) -> None:
    """Start the ranks of a launch, and the watches for use, hangs and notices. A second call changes nothing.

    Raises OSError with a sentence if the ranks could not be started.
    """
    supervisor.launch(launch)
    run_dir = Path(launch["run_dir"])
    interface = launch["env"].get("GLOO_SOCKET_IFNAME")
    watch = None
    if launch.get("gpu_watch"):
        watch = gpu_watch.GpuWatch(run_dir, launch["node"], launch["gpu_watch"])
    interfaces = [interface] if interface else []
    usage.begin_log(run_dir, launch["node"], interfaces, watch, launch.get("gpus", []))
    hang_watch.begin(run_dir, launch["env"])
    if launch.get("notify"):
        from remote.node.notify import run_watch  # its imports take long

        run_watch.begin(run_dir, launch["notify"])
