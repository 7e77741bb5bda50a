"""The errors of this package.

ProvisionError
├── UnknownProvider     this build has no provider of that name
├── UnknownShape        no provider knows a shape of that name
├── RefusedPlan         what is asked for can't be reached from what there is (a smaller count, another shape)
├── NoCapacity          the provider has no such machines, or the account's quota forbids them
├── CreateFailed        machines could not be created; what was begun has been rolled back
├── OtherAccount        the credentials in force are of another account than the cluster
├── LeftBehind          it did not work, and what it made is still there: the message lists it
└── CloudError          a cloud's answer to one call, translated at the boundary of its SDK
    ├── Capacity        none of these machines in that zone now: try the next one
    ├── Quota           the account may not have that many: no other zone helps
    ├── Throttled       refused for coming too fast; it was not done
    ├── Unclear         no answer, or one that does not tell whether it was done
    │   └── NoAnswer    the service was not reached, or said nothing: no network, a firewall
    ├── Gone            there is no such thing, or not yet, or not any more
    ├── Blocked         it can't be removed while something else uses it
    ├── Exists          something of that name is there already
    ├── TokenSpent      the token of an idempotent call can't be used again
    ├── AccountNotReady the account can't use the service: not subscribed, not verified yet, blocked
    ├── Denied          the account lacks a permission
    │   └── TermsRefused    it may not accept the terms of the default image: the next offer has another one
    └── BadCredentials  there are none, they are wrong, or they have expired
        └── UnknownProfile  the account that was named is in no configuration here

What a person wrote wrongly is `inventories.errors.InvalidInput` here as well, with two of its kind beside their
causes:
`AddressUnknown` (cloud.planning.caller_address) and `NotAccepted` (oci.images.marketplace).
"""

from collections.abc import Sequence

from inventories.errors import GpuctlError


class ProvisionError(GpuctlError):
    """Base of the family."""


class UnknownProvider(ProvisionError):
    """This build has no provider of that name."""

    exit_status = 2


class UnknownShape(ProvisionError):
    """No provider knows a shape of that name."""

    exit_status = 2


class RefusedPlan(ProvisionError):
    """What is asked for can't be reached from what there is; the message names the way to go."""

    exit_status = 2


class NoCapacity(ProvisionError):
    """The provider has no such machines now, or the account's quota forbids them."""

    exit_status = 3


class CreateFailed(ProvisionError):
    """Machines could not be created; what was begun has been rolled back."""


class OtherAccount(ProvisionError):
    """The credentials in force are of another account than the cluster; the message names both."""

    exit_status = 2


class LeftBehind(ProvisionError):
    """It did not work, and what was made is still there; the message lists it and says how to remove it."""

    exit_status = 4


class CloudError(ProvisionError):
    """A cloud's answer to one call. `code` is the cloud's own word for it, such as `VcpuLimitExceeded`."""

    def __init__(
        self, message: str, *, operation: str = "", code: str = "", named: Sequence[str] = ()
    ) -> None:
        """`named`: what the cloud's own message names, limits or ids, where it is nowhere else."""
        super().__init__(message)
        self.operation = operation
        self.code = code
        self.named = tuple(named)


class Capacity(CloudError):
    """None of these machines in that zone now, or never: the next zone may have them."""

    exit_status = 3


class Quota(CloudError):
    """The account may not have that many. The message names the limit and where to raise it."""

    exit_status = 3


class Throttled(CloudError):
    """Refused for coming too fast. It was not done."""


class Unclear(CloudError):
    """No answer, or one that does not tell whether it was done: a lost connection, a 500."""


class NoAnswer(Unclear):
    """The service was not reached, or said nothing in time: without a network, or behind a firewall."""


class Gone(CloudError):
    """There is no such thing: not yet (just after it was made), not any more, or not for this account."""


class Blocked(CloudError):
    """It can't be removed while something else uses it; the message names what does where the cloud says so."""


class Exists(CloudError):
    """Something of that name is there already."""


class TokenSpent(CloudError):
    """The token can't be used again: its machines have ended, or it stood for another request."""


class AccountNotReady(CloudError):
    """The account can't use the service: it is not subscribed, is not verified yet, or is blocked."""


class Denied(CloudError):
    """The account lacks a permission. The message names the action, or the policy statement.

    `named`: the actions that the cloud's answer names.
    """


class TermsRefused(Denied):
    """The account may not accept the terms of the default image. The next offer has another image."""


class BadCredentials(CloudError):
    """There are none, they are wrong, or they have expired. The message says where they are looked for."""


class UnknownProfile(BadCredentials):
    """The profile that was named is in no configuration here."""

    exit_status = 2


UNHEARD = (Denied, Unclear, BadCredentials, Throttled)
"""Of an API server of Kubernetes that does not answer, or not to us: the cloud may answer all the same."""
