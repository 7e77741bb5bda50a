"""Advice on a file, a module, a repository or a setting that a rank did not find on its node."""

from pathlib import Path

from gpuctl.run_results.missing.files import how_to_send
from gpuctl.run_results.missing.modules import how_to_install, how_to_run_in_package
from gpuctl.run_results.missing.repository import how_to_know_commit
from gpuctl.run_results.missing.settings import how_to_set
from inventories.disk.store import RunFolder, Store
from inventories.errors import InventoryError
from inventories.runs.end_reasons import Reason
from inventories.runs.run import Result
from remote.errors import RemoteError


def how_to_bring(result: Result) -> str:
    """Return the sentence on a file or module that the first failed rank did not find. Empty: nothing is certain."""
    error = result.first_error
    if error is not None and (sentence := how_to_know_commit(error, result.commit)):
        return sentence
    if error is not None and (sentence := how_to_run_in_package(error, result.script)):
        return sentence
    if error is not None and (sentence := how_to_set(error)):
        return sentence
    if error is None or error.reason not in (Reason.FILE_NOT_FOUND, Reason.MODULE_NOT_FOUND):
        return ""
    try:
        run = RunFolder(Path(result.dir)).load_run()
        if run.options is None or run.options.project is None:
            return ""
        if error.reason is Reason.FILE_NOT_FOUND:
            return how_to_send(error.detail, run.options, mode=run.mode)
        own_python, local = _own_python(result)
        return how_to_install(error.detail, run, own_python=own_python, local=local)
    except (InventoryError, RemoteError, OSError):  # the name may be one that no file can have
        return ""


def _own_python(result: Result) -> tuple[str, bool]:
    """Return the machines' own Python interpreter, and whether they are hosts on this computer.

    Empty: the machines have no such interpreter, or are gone.
    """
    cluster = Store(Path(result.dir).parents[1]).cluster(result.cluster)
    if not cluster.exists():
        return "", False
    inventory = cluster.load()
    python = next((machine.python for machine in inventory.machines if machine.python), "")
    return python, inventory.provider == "local"
