"""The clouds by name, each imported when it is used: their SDKs are large, and one of them is enough."""

import importlib
import importlib.util
from collections.abc import Sequence
from types import ModuleType

from provision.clock import Clock, SystemClock
from provision.cloud.interface import Cloud
from provision.cloud.records import CloudCluster, Finding, NewMachine, Offer, Preview, Target
from provision.errors import UnknownProvider

CLOUDS: dict[str, tuple[str, str, str]] = {
    "oci": ("provision.oci.cloud", "oci", "Oracle Cloud Infrastructure, as VM.GPU.A10.2"),
    "aws": ("provision.aws.cloud", "boto3", "Amazon Web Services, as g5.12xlarge"),
}
"""Name → the module, the SDK that it needs, and what it is.

A module has `connect(target, clock=…)`, `configured()`, `sdk()` and `outline(cluster, machines)`."""


def installed(name: str) -> bool:
    """Whether the cloud's SDK is there. Does not import it."""
    return importlib.util.find_spec(CLOUDS[name][1]) is not None


def connect(target: Target, clock: Clock | None = None) -> Cloud:
    """The account and region of `target`. Raises BadCredentials, and UnknownProvider without its SDK."""
    made: Cloud = _module(target.provider).connect(target, clock=clock or SystemClock())
    return made


def configured(name: str) -> bool:
    """Whether somebody has set the cloud up on this computer, rightly or not. Asks no account."""
    answer: bool = _module(name).configured()
    return answer


def sdk(name: str) -> Finding:
    """Which SDK is there, of which version. Asks no account."""
    found: Finding = _module(name).sdk()
    return found


def outline(cluster: CloudCluster, machines: Sequence[NewMachine]) -> tuple[Offer, Preview]:
    """What would be made of these machines in an account that nothing is known of."""
    found: tuple[Offer, Preview] = _module(cluster.target.provider).outline(cluster, machines)
    return found


def _module(name: str) -> ModuleType:
    if name not in CLOUDS:
        raise UnknownProvider(f"There is no cloud '{name}'. Give {' or '.join(CLOUDS)}.")
    module, sdk, _ = CLOUDS[name]
    if not installed(name):
        raise UnknownProvider(
            f"Provider {name} needs the Python package '{sdk}'. Install it beside gpuctl: "
            f"`pip install '.[{name}]'` in gpuctl's folder, or `pip install {sdk}`."
        )
    return importlib.import_module(module)
