"""The errors of this package.

GpuctlError
├── Usage               what was typed can't be done like that; exit status 2
├── Failed              it was tried and did not work; exit status 1
│   └── JobStopped      a person stopped the job between two of its runs
├── Declined            a person answered a question with no; exit status 1, and told as no error
└── Attention           partly done, and something needs a person; exit status 4
"""

from collections.abc import Mapping


class GpuctlError(Exception):
    """Base of the family. The message is one or more whole sentences that say what to do next."""

    exit_status = 1
    """What gpuctl ends with where this ends it."""


class Usage(GpuctlError):
    """What was typed can't be done like that."""

    exit_status = 2


class Failed(GpuctlError):
    """It was tried and did not work."""


class Declined(GpuctlError):
    """A person was asked, and said no: nothing was done, as wished."""


class JobStopped(Failed):
    """A person stopped the job between two of its runs."""


class Attention(GpuctlError):
    """Partly done; the message names what is left for a person to look at."""

    exit_status = 4

    def __init__(self, message: str, document: Mapping[str, object] | None = None) -> None:
        """`document`: what --json shows beside the error."""
        super().__init__(message)
        self.document = document or {}
