"""Rent GPU machines, train on them, bring the results back, leave nothing running: the library and its command line.

    with gpuctl.up(provider="local", count=2) as cluster:
        run = cluster.train("my.py", args=["--lr", "0.1"])

Importing this package costs nothing: everything is imported when it is first used.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuctl.command_results.clusters import ClusterStatus as ClusterStatus
    from gpuctl.command_results.clusters import ClusterSummary as ClusterSummary
    from gpuctl.command_results.clusters import CostResult as CostResult
    from gpuctl.command_results.clusters import DownResult as DownResult
    from gpuctl.command_results.clusters import UpPlan as UpPlan
    from gpuctl.command_results.nodes import CommandResult as CommandResult
    from gpuctl.command_results.nodes import Pulled as Pulled
    from gpuctl.command_results.nodes import Pushed as Pushed
    from gpuctl.command_results.runs import AdviceRow as AdviceRow
    from gpuctl.command_results.runs import LogLine as LogLine
    from gpuctl.command_results.runs import RunInfo as RunInfo
    from gpuctl.errors import Attention as Attention
    from gpuctl.errors import Declined as Declined
    from gpuctl.errors import Failed as Failed
    from gpuctl.errors import GpuctlError as GpuctlError
    from gpuctl.errors import Interrupted as Interrupted
    from gpuctl.errors import Usage as Usage
    from gpuctl.library.cluster import Cluster as Cluster
    from gpuctl.library.functions import advise as advise
    from gpuctl.library.functions import cluster as cluster
    from gpuctl.library.functions import clusters as clusters
    from gpuctl.library.functions import cost as cost
    from gpuctl.library.functions import plan as plan
    from gpuctl.library.functions import report as report
    from gpuctl.library.functions import results as results
    from gpuctl.library.functions import runs as runs
    from gpuctl.library.functions import up as up
    from gpuctl.workflow.jobs.bench import BenchResult as BenchResult
    from inventories.errors import InvalidInput as InvalidInput
    from inventories.errors import InventoryError as InventoryError
    from inventories.errors import Locked as Locked
    from inventories.errors import NotFound as NotFound
    from inventories.machine import MachineInfo as MachineInfo
    from inventories.runs.hang import Hang as Hang
    from inventories.runs.result import Result as Result
    from provision.errors import BadCredentials as BadCredentials
    from provision.errors import LeftBehind as LeftBehind
    from provision.errors import NoCapacity as NoCapacity
    from provision.errors import ProvisionError as ProvisionError
    from provision.errors import Quota as Quota
    from provision.provider import Leftover as Leftover
    from remote.errors import PreflightFailed as PreflightFailed
    from remote.errors import RemoteError as RemoteError
    from remote.errors import Unreachable as Unreachable

LIBRARY = {
    "gpuctl.library.functions": ("up", "plan", "cluster", "clusters", "cost", "report", "results", "runs", "advise"),
    "gpuctl.library.cluster": ("Cluster",),
    "gpuctl.command_results.clusters": ("ClusterStatus", "ClusterSummary", "CostResult", "DownResult", "UpPlan"),
    "gpuctl.command_results.nodes": ("CommandResult", "Pulled", "Pushed"),
    "gpuctl.command_results.runs": ("AdviceRow", "LogLine", "RunInfo"),
    "inventories.runs.hang": ("Hang",),
    "inventories.machine": ("MachineInfo",),
    "gpuctl.workflow.jobs.bench": ("BenchResult",),
    "inventories.runs.result": ("Result",),
    "provision.provider": ("Leftover",),
    "gpuctl.errors": ("Attention", "Declined", "Failed", "GpuctlError", "Interrupted", "Usage"),
    "inventories.errors": ("InvalidInput", "InventoryError", "Locked", "NotFound"),
    "provision.errors": ("BadCredentials", "LeftBehind", "NoCapacity", "ProvisionError", "Quota"),
    "remote.errors": ("PreflightFailed", "RemoteError", "Unreachable"),
}  # fmt: skip
"""Modules of the public names, except `version`."""
_HOME = {name: module for module, names in LIBRARY.items() for name in names}
__all__ = ["version", *_HOME]


def version() -> str:
    """The installed version. `importlib.metadata` is slow to import, so it is asked when it is needed."""
    from importlib import metadata

    try:
        return metadata.version("gpuctl-train")
    except metadata.PackageNotFoundError:
        return "unknown (a checkout that is not installed)"


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used."""
        if name not in _HOME:
            raise AttributeError(f"module 'gpuctl' has no attribute {name!r}")
        from importlib import import_module

        _import_own_packages()
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value

    def __dir__() -> list[str]:
        """List the public names, also unused ones, for completion."""
        return sorted({*globals(), *_HOME})


def _import_own_packages() -> None:
    """Import gpuctl's other packages from this one's folder, whatever the program's own folder holds.

    Raises ImportError if a module of the program has the name of one of them.
    """
    from importlib import import_module

    ours = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120 - pathlib is slow to import
    sys.path.insert(0, ours)
    try:
        for name in ("inventories", "provision", "remote"):
            file = getattr(import_module(name), "__file__", None)
            if file is None or not os.path.realpath(file).startswith(os.path.join(ours, name, "")):  # noqa: PTH118
                location = file or "a folder without __init__.py"
                raise ImportError(
                    f"gpuctl has a package {name}, and so has this program: {location}. Rename the program's."
                )
    finally:
        sys.path.remove(ours)
