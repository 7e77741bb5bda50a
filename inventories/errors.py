"""The root of all errors of gpuctl, and the errors of this package.

The other packages have families of their own: gpuctl.errors, provision.errors, remote.errors.
"""


class GpuctlError(Exception):
    """Root of every error of gpuctl. The message is one or more whole sentences that say what to do next."""

    exit_status: int = 1
    """The command line's: 1 failed, 2 wrong usage or input, 3 no capacity or quota, 4 needs attention."""


class InventoryError(GpuctlError):
    """Base of the family."""


class InvalidInput(InventoryError):
    """Input of a person that can't be used."""

    exit_status = 2


class NotFound(InventoryError):
    """No such cluster or run."""

    exit_status = 2


class CorruptFile(InventoryError):
    """A file of ours can't be read; the message names it and the way to rebuild it."""

    exit_status = 2


class NewerFormat(InventoryError):
    """A file of ours was written by a newer gpuctl."""

    exit_status = 2


class NoAccess(InventoryError):
    """A file or folder can't be read or written; the message says why."""


class Locked(InventoryError):
    """Another live process works on the cluster; the message carries its pid."""
