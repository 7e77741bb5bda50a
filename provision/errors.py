"""The errors of this package. CloudError is a cloud's answer to one call, translated at the boundary of its SDK.

Wrong input is `inventories.errors.InvalidInput` here as well. Two subclasses are defined where they are raised:
`AddressUnknown` (rented.planning.caller_address) and `NotAccepted` (oci.images.marketplace).
"""

from collections.abc import Sequence

from inventories.errors import GpuctlError


class ProvisionError(GpuctlError):
    """Base of the family."""


class UnknownProvider(ProvisionError):
    """No provider of this build has that name."""

    exit_status = 2


class UnknownShape(ProvisionError):
    """No provider knows a shape of that name."""

    exit_status = 2


class RefusedPlan(ProvisionError):
    """The cluster can't be changed to the spec; the message names the next command."""

    exit_status = 2


class NoCapacity(ProvisionError):
    """The provider has no such machines now, or the account's quota forbids them."""

    exit_status = 3


class CreateFailed(ProvisionError):
    """Machines could not be created; the attempt has been rolled back."""


class OtherAccount(ProvisionError):
    """The credentials in force are of another account than the cluster; the message names both."""

    exit_status = 2


class LeftBehind(ProvisionError):
    """The command failed, and its resources still exist; the message lists them and says how to remove them."""

    exit_status = 4


class CloudError(ProvisionError):
    """A cloud's answer to one call. `code` is the cloud's own, such as `VcpuLimitExceeded`."""

    def __init__(
        self, message: str, *, operation: str = "", code: str = "", named: Sequence[str] = ()
    ) -> None:
        """Keep the cloud's own words. `named`: limits or ids of the cloud's message that have no other field."""
        super().__init__(message)
        self.operation = operation
        self.code = code
        self.named = tuple(named)


class Capacity(CloudError):
    """The zone lacks these machines now, or always: the next zone may have them."""

    exit_status = 3


class Quota(CloudError):
    """Over a limit of the account. The message names the limit and where to raise it."""

    exit_status = 3


class Throttled(CloudError):
    """Refused because of the call rate. The call had no effect."""


class Unclear(CloudError):
    """No answer, or an answer that leaves the outcome open: a lost connection, a 500."""


class NoAnswer(Unclear):
    """The service was not reached, or sent nothing in time: without a network, or behind a firewall."""


class Gone(CloudError):
    """The resource does not exist: not yet (just after its creation), not any more, or not for this account."""


class Blocked(CloudError):
    """The resource can't be removed while another uses it, which the message names if the cloud does."""


class Exists(CloudError):
    """A resource of that name exists."""


class TokenSpent(CloudError):
    """The token can't be used again: its machines have ended, or it belongs to another request."""


class AccountNotReady(CloudError):
    """The account can't use the service: not subscribed, not verified yet, or blocked."""


class Denied(CloudError):
    """The account lacks a permission. The message names the action, or the policy statement.

    `named`: the actions that the cloud's answer names.
    """


class TermsRefused(Denied):
    """The account may not accept the terms of the default image. The next offer has another image."""


class BadCredentials(CloudError):
    """No credentials, wrong or expired ones. The message names the places that are read."""


class UnknownProfile(BadCredentials):
    """The named profile is in no configuration here."""

    exit_status = 2


API_UNAVAILABLE = (Denied, Unclear, BadCredentials, Throttled)
"""Errors of a Kubernetes API server that does not answer or refuses; the cloud may answer all the same."""
