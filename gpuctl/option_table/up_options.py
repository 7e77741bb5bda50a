"""The options of `gpuctl up` that are not in a spec file. `inventories.specs.spec` declares the others."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from inventories.option import option
from inventories.specs.checks import parse_duration_s


# fmt: off
@dataclass(frozen=True, kw_only=True)
class UpSettings:
    """The options of `gpuctl up`, as its request has them. `Spec` declares the others."""

    file: Path | None = option(
        "-f", "--file", metavar="SPEC.yaml", after="context", help="Read what is wanted from a spec file.",
    )
    known_hosts: Path | None = option(
        "--known-hosts", metavar="FILE",
        help="Host keys of --hosts machines (default: your known_hosts).",
    )
    accept_new_host_keys: bool = option(
        "--accept-new-host-keys", default=False,
        help="Trust and pin the keys that unknown hosts show now. (hosts)",
    )
    boot_timeout_s: float | None = option(
        "--boot-timeout", keyword="boot_timeout", kind=str, annotation="str | None", metavar="TIME",
        read=partial(parse_duration_s, option="--boot-timeout"),
        help="Maximum time to wait for machines to boot (default: 15m). (clouds)",
    )
    wait: bool = option(
        "--no-wait", default=True, help="Return when the machines run, before connecting to them.",
    )
