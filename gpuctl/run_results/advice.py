"""What to do about a run's failure, beside what its sentence says."""

from pathlib import Path

from gpuctl.run_results.log_errors import path_not_found
from gpuctl.run_results.missing import how_to_bring
from inventories.disk.store import RunFolder
from inventories.end_reasons import Reason
from inventories.errors import InventoryError
from inventories.run import Result

OF_UNEVEN_FILES = frozenset({Reason.EXIT_CODE, Reason.FILE_NOT_FOUND, Reason.LOST_PEER, Reason.NCCL_ERROR})
"""What ranks also fail with of which only some found a file, beside that they wait for each other."""


def advice_on(result: Result) -> str:
    """The sentence on what a rank looked for in vain, else on files that only some nodes had.

    Empty where there is none.
    """
    error = result.first_error
    if error is None and result.hang is None:
        return ""
    if sentence := how_to_bring(result):
        return sentence
    try:
        uneven = RunFolder(Path(result.dir)).load_run().uneven_files
    except (InventoryError, OSError):
        return ""
    if not uneven or not (error is None or error.waited_for or error.reason in OF_UNEVEN_FILES):
        return ""
    if error is not None and error.reason is Reason.FILE_NOT_FOUND:
        name = Path(path_not_found(error.detail)).name
        if not name or name not in uneven:
            return ""  # it is missing for another reason
    return f"The nodes' files differed: {uneven}."
