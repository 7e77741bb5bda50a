"""What is asked for and a provider can't honour is refused, never ignored."""

from collections.abc import Collection

from inventories.errors import InvalidInput
from inventories.specs.spec import Spec

OPTIONS = {
    "shape": "--shape",
    "min_count": "--min",
    "max_count": "--max",
    "region": "--region",
    "compartment": "--compartment",
    "profile": "--profile",
    "context": "--context",
    "image": "--image",
    "driver": "--driver",
    "accept_terms": "--accept-terms",
    "disk_gb": "--disk-gb",
    "spot": "--spot",
    "ssh_cidr": "--ssh-cidr",
    "ssh_port": "network.ssh_port",
    "subnet_id": "--subnet-id",
    "public_ip": "--no-public-ip",
    "bastion": "--bastion",
    "ttl_s": "--ttl",
    "hosts": "--hosts",
}
"""Fields of Spec that some providers only can honour, and the options, or keys of a spec file, that set them."""


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
