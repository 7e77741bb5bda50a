"""What is asked for and a provider can't honour is refused, never ignored."""

from collections.abc import Collection

from inventories.errors import InvalidInput
from inventories.option import options_of
from inventories.specs.spec import Spec

OPTIONS = {option.name: option.setting for option in options_of(Spec) if option.providers}
"""Fields of Spec that some providers only can honour, and the options, or keys of a spec file, that set them."""


def taken_by(provider: str) -> frozenset[str]:
    """Return the fields in OPTIONS that a provider takes. `clouds`: clouds of virtual machines."""
    return frozenset(option.name for option in options_of(Spec) if provider in option.providers.split())


def refuse_unsupported(spec: Spec, provider: str, *, honoured: Collection[str], because: str) -> None:
    """Raise InvalidInput where the spec sets a field of OPTIONS that is not among those `honoured`.

    `because` is the clause that says why the provider has none of the others.
    """
    nothing = Spec()
    asked = [
        option
        for name, option in OPTIONS.items()
        if getattr(spec, name) != getattr(nothing, name) and name not in honoured
    ]
    if asked:
        raise InvalidInput(
            f"{provider} has no {', '.join(asked)}: {because}. Leave that out, also of a spec file, "
            "or name another provider."
        )
