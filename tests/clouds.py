"""Run gpuctl against a fake cloud; define both fake clouds."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Literal

from forks import Forked, Forks
from support import Gpuctl

import gpuctl.commands
import gpuctl.library
import gpuctl.workflow
import inventories
import provision
import provision.local
import provision.pricing
import provision.rented
import provision.rented.planning
import remote
from tests.fakes.client import FakeCloud, start_fake

COUNT = 2


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A cloud as tests use it."""

    provider: str
    fake: Literal["oci", "aws_proxy"]
    shape: str
    other_shape: str
    region: str
    zones: tuple[str, ...]
    """In the order in which they are tried."""
    client: str
    """The cloud's own command line."""
    up_options: tuple[str, ...] = ()
    """Extra options of each `up`."""


KINDS = {
    "oci": Kind(
        provider="oci",
        fake="oci",
        shape="VM.GPU.A10.2",
        other_shape="VM.GPU.A10.1",
        region="eu-frankfurt-1",
        zones=("Uocm:EU-FRANKFURT-1-AD-1", "Uocm:EU-FRANKFURT-1-AD-2", "Uocm:EU-FRANKFURT-1-AD-3"),
        client="oci",
    ),
    "aws": Kind(
        provider="aws",
        fake="aws_proxy",
        shape="g5.12xlarge",
        other_shape="g5.xlarge",
        region="us-east-1",
        zones=("us-east-1a", "us-east-1b", "us-east-1c"),
        client="aws",
    ),
}
IMPORTS = (
    *(
        module.name
        for package in (
            *(gpuctl.commands, gpuctl.library, gpuctl.workflow, gpuctl, inventories, remote),
            *(provision, provision.rented, provision.rented.planning, provision.pricing, provision.local),
        )
        for module in iter_modules(package.__path__, f"{package.__name__}.")
        if not module.name.endswith("__main__")
    ),
    *(f"provision.{name}.cloud" for name in KINDS),
    *(f"oci.{name}" for name in ("core", "identity", "limits", "work_requests")),
)
"""Modules that commands import only when needed."""
PRIVATE = ("--no-public-ip", "--bastion", "somebody@192.0.2.9")
"""Machines in a private subnet of gpuctl's, behind a bastion of the user's."""


@dataclass(frozen=True, kw_only=True)
class CloudGpuctl(Gpuctl):
    """gpuctl with a fake cloud as its account."""

    cloud: FakeCloud
    kind: Kind

    @property
    def env(self) -> dict[str, str]:
        """Return the command's environment: the fake's account, and lists that settle fast."""
        return {**super().env, **self.cloud.env, "GPUCTL_CONSISTENCY_S": "0.5"}

    def fork(self, *words: str) -> Forked:
        """Start a command that is forked; the caller ends it."""
        return self.forks.start(words, env=self.env, cwd=self.cwd)

    @property
    def up_words(self) -> tuple[str, ...]:
        """`up` of COUNT machines, without waiting for their SSH servers."""
        words = ("up", "--shape", self.kind.shape, "--count", str(COUNT), "--ssh-cidr", "127.0.0.1/32")
        return (*words, *self.kind.up_options, "--no-wait", "--yes", "--json")


@contextmanager
def cloud_gpuctl(kind: Kind, folder: Path, *, hosts: bool = False, **settings: Any) -> Iterator[CloudGpuctl]:
    """Yield gpuctl with a fake cloud of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    with start_fake(kind.fake, folder, hosts=hosts) as cloud:
        if settings:
            cloud.settings(**settings)
        (folder / "project").mkdir()
        yield CloudGpuctl(home=folder / "home", cwd=folder / "project", cloud=cloud, kind=kind)


class Clouds:
    """Fake clouds that tests use one after the other: each is started when it is first used."""

    def __init__(self, folder: Path, running: ExitStack, *, forks: Forks | None = None) -> None:
        self._folder = folder
        self._running = running
        self._forks = forks
        self._started: dict[tuple[str, int], CloudGpuctl] = {}

    def as_new(self, kind: Kind, folder: Path, number: int = 0) -> CloudGpuctl:
        """gpuctl with a home in `folder`, and the cloud of that kind and number, in which nothing is now."""
        key = (kind.fake, number)
        if key not in self._started:
            home = self._folder / f"{kind.fake}-{number}"
            self._started[key] = self._running.enter_context(cloud_gpuctl(kind, home))
        result = self._started[key]
        result.cloud.reset()
        project = folder / "project"
        project.mkdir(parents=True)
        return replace(result, home=folder / "home", cwd=project, kind=kind, forks=self._forks)
