"""The errors of this package.

TrainError
├── MissingData, BadData, BadOptions (exit status 2), BadCheckpoint, BadEnvironment, NotWritten
├── NoPeers
└── PeerLost
    └── PeerSilent

Anything else that escapes is shown with its traceback.
"""

from collections.abc import Sequence


class TrainError(Exception):
    """Base of the family. The message is one or more whole sentences that say what to do next."""


class MissingData(TrainError):
    """The dataset is not on this machine."""


class BadData(TrainError):
    """The dataset is there and can't be used."""


class BadOptions(TrainError):
    """The options don't fit the data, the model or the ranks."""


class BadCheckpoint(TrainError):
    """The checkpoint is of another model, or can't be read."""


class BadEnvironment(TrainError):
    """The launcher's variables are incomplete, or this host lacks GPUs, their driver or a package."""


class NoPeers(TrainError):
    """The other ranks did not arrive in time."""

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        """`ranks`: missing ranks, as far as known."""
        super().__init__(message)
        self.ranks = list(ranks)


class PeerLost(TrainError):
    """Another rank failed or fell silent: its log has the cause."""


class PeerSilent(PeerLost):
    """Another rank did not arrive in time: it hangs, or is far behind."""


class NotWritten(TrainError):
    """The model or the metrics could not be written."""
