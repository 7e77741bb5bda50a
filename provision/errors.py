"""The errors of this package.

ProvisionError
├── UnknownProvider     this build has no provider of that name
├── UnknownShape        no provider knows a shape of that name
├── RefusedPlan         what is asked for can't be reached from what there is (a smaller count, another shape)
├── NoCapacity          the provider has no such machines, or the account's quota forbids them
└── CreateFailed        machines could not be created; what was begun has been rolled back
"""


class ProvisionError(Exception):
    """Base of the family. The message is one or more whole sentences that say what to do next."""


class UnknownProvider(ProvisionError):
    """This build has no provider of that name."""


class UnknownShape(ProvisionError):
    """No provider knows a shape of that name."""


class RefusedPlan(ProvisionError):
    """What is asked for can't be reached from what there is; the message names the way to go."""


class NoCapacity(ProvisionError):
    """The provider has no such machines now, or the account's quota forbids them."""


class CreateFailed(ProvisionError):
    """Machines could not be created; what was begun has been rolled back."""
