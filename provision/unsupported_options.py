"""The refusal of options that a provider does not support, which are never ignored."""

from collections.abc import Collection

from inventories.errors import InvalidInput
from inventories.option import options_of
from inventories.specs.spec import Spec

OPTIONS = {option.name: option.setting for option in options_of(Spec) if option.providers}
"""Fields of Spec that only some providers support, and their options, or keys of a spec file."""


def taken_by(provider: str) -> frozenset[str]:
    """Return the fields in OPTIONS that a provider takes. `clouds`: clouds of virtual machines."""
    return frozenset(option.name for option in options_of(Spec) if provider in option.providers.split())


def refuse_unsupported(spec: Spec, provider: str, *, honoured: Collection[str], because: str) -> None:
    """Raise InvalidInput for a spec that sets a field of OPTIONS which is not `honoured`.

    `because`: a clause with the provider's reason.
    """
    empty = Spec()
    options = [
        option
        for name, option in OPTIONS.items()
        if getattr(spec, name) != getattr(empty, name) and name not in honoured
    ]
    if options:
        raise InvalidInput(
            f"{provider} has no {', '.join(options)}: {because}. Leave that out, also of a spec file, "
            "or name another provider."
        )
