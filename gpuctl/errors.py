"""The errors of this package; `GpuctlError` is the root of those of all packages (`inventories.errors`).

GpuctlError
├── Usage               what was typed can't be done like that; exit status 2
│   └── StrategyDoesNotFit   the job's strategy can't divide the ranks of the machines
├── Failed              it was tried and did not work; exit status 1
│   └── JobStopped      a person stopped the job between two of its runs
├── Declined            a person answered a question with no; exit status 1, and told as no error
└── Attention           partly done, and something needs a person; exit status 4

KeyboardInterrupt
└── Interrupted         a person pressed Ctrl-C, and what was going on has been ended; exit status 130
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
    """What was typed can't be done like that."""

    exit_status = 2


class StrategyDoesNotFit(Usage):
    """The strategy of the built-in job can't divide the ranks of the machines that there are.

    `hint`: options with which it could. Empty: no such options are known.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Failed(GpuctlError):
    """It was tried and did not work."""


class Declined(GpuctlError):
    """A person was asked, and said no: nothing was done."""


class JobStopped(Failed):
    """A person stopped the job between two of its runs."""


class Attention(GpuctlError):
    """Partly done; the message names what is left for a person to look at."""

    exit_status = 4

    def __init__(self, message: str, *, result: object = None) -> None:
        """`result`: what would have been returned, and is the document of --json; None: it is not known."""
        super().__init__(message)
        self.result = result


class Interrupted(KeyboardInterrupt):
    """A person pressed Ctrl-C, and what was going on has been ended."""

    exit_status: ClassVar[int] = 130

    def __init__(self, message: str, *, result: object = None) -> None:
        """`result`: what the function would have returned; None only until it is unpickled."""
        super().__init__(message)
        self.result = result
