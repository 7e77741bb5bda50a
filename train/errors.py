"""The errors of this package.

TrainError
├── MissingData      the dataset is not on this machine, and we don't download it
├── BadEnvironment   the launcher's variables are incomplete, or this host has too few GPUs
├── NoPeers          the other ranks did not arrive in time
├── PeerLost         another rank failed or fell silent: the cause is there, not here
└── NotWritten       the model or the metrics could not be written

Anything else that escapes is shown with its traceback.
"""


class TrainError(Exception):
    """Base of the family. The message is one or more whole sentences that say what to do next."""


class MissingData(TrainError):
    """The dataset is not on this machine."""


class BadEnvironment(TrainError):
    """The launcher's variables are incomplete, or this host has too few GPUs."""


class NoPeers(TrainError):
    """The other ranks did not arrive in time."""


class PeerLost(TrainError):
    """Another rank failed or fell silent: the cause is there, not here."""


class NotWritten(TrainError):
    """The model or the metrics could not be written."""
