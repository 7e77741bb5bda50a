"""The refusal of options that a provider does not support, which are never ignored."""

from inventories.errors import InvalidInput
from inventories.option import options_of
from inventories.specs.spec import Spec
from provision.clouds import CLOUDS, describe

OPTIONS = {option.name: option.setting for option in options_of(Spec) if option.providers}
"""Fields of Spec that only some providers support, and their options, or keys of a spec file."""


def supported(provider: str) -> frozenset[str]:
    """Return the fields of Spec that this provider takes and some other does not."""
    name = "clouds" if provider in CLOUDS else provider
    fields = frozenset(option.name for option in options_of(Spec) if name in option.providers.split())
    return fields - describe(provider).unsupported if provider in CLOUDS else fields


def refuse_unsupported(spec: Spec, provider: str, *, because: str) -> None:
    """Raise InvalidInput for a spec that sets a field which the provider does not take.

    `because`: a clause with the provider's reason.
    """
    honoured = supported(provider)
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
