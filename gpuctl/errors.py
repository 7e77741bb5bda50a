"""The errors of this package; `GpuctlError` is the root of the errors of all packages (`inventories.errors`).

GpuctlError
├── Usage               the command line asks for the impossible; exit status 2
│   └── StrategyDoesNotFit   the job's strategy can't divide the ranks of the machines
├── Failed              an action was tried and failed; exit status 1
│   └── JobStopped      a user stopped the job between two of its runs
├── Declined            a user answered a question with no; exit status 1, printed without `error:`
└── Attention           partly done, and a user has to look at the rest; exit status 4

KeyboardInterrupt
└── Interrupted         a user pressed Ctrl-C, and the current action has been ended; exit status 130
"""

from typing import ClassVar

from inventories.errors import GpuctlError

__all__ = [
    "Attention",
    "Declined",
    "Failed",
    "GpuctlError",
    "Interrupted",
    "JobStopped",
    "StrategyDoesNotFit",
    "Usage",
]


class Usage(GpuctlError):
    """The command line asks for the impossible."""

    exit_status = 2


class StrategyDoesNotFit(Usage):
    """The strategy of the built-in job can't divide the ranks of the existing machines.

    `hint`: options that could. Empty: no such options are known.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Failed(GpuctlError):
    """An action was tried and failed."""


class Declined(GpuctlError):
    """A person was asked, and said no: nothing was done."""


class JobStopped(Failed):
    """A person stopped the job between two of its runs."""


class Attention(GpuctlError):
    """Partly done; the message names the rest, which a user has to look at."""

    exit_status = 4

    def __init__(self, message: str, *, result: object = None) -> None:
        """`result`: what would have been returned, and is the document of --json; `None`: it is not known."""
        super().__init__(message)
        self.result = result


class Interrupted(KeyboardInterrupt):
    """A user pressed Ctrl-C, and the current action has been ended."""

    exit_status: ClassVar[int] = 130

    def __init__(self, message: str, *, result: object = None) -> None:
        """`result`: the function's return value; `None` only until it is unpickled."""
        super().__init__(message)
        self.result = result
