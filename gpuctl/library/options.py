"""What `up`, `train` and `bench` accept, and what is made of it, for the library and for the command line."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from gpuctl.errors import Usage
from gpuctl.library.keywords import BenchOptions, File, TrainOptions
from gpuctl.option_table.bench_options import BenchSettings
from gpuctl.option_table.train_options import TrainSettings
from gpuctl.option_table.values import min_nodes, read_options, refuse_unknown
from gpuctl.workflow.clusters.up import HostKeys
from gpuctl.workflow.jobs.bench_request import BenchRequest
from gpuctl.workflow.runs.outputs.earlier import check_earlier
from gpuctl.workflow.runs.request.engine_config import with_config
from gpuctl.workflow.runs.request.request import TrainRequest, check_together
from inventories.specs.spec import DEFAULT_CLUSTER, Spec
from inventories.specs.validate import (
    check_limits,
    check_max_cost_usd,
    check_option,
    check_ttl_s,
    parse_duration_s,
    read_spec,
)


class UpOptions(TypedDict, total=False):
    """The options of `gpuctl up`, named as on the command line. None: as if it were left out."""

    provider: str | None
    """`local`, `hosts`, `oci` or `aws`. Default: told by `shape` or `hosts`."""
    shape: str | None
    """Machine shape, such as `VM.GPU.A10.2` (OCI) or `g5.12xlarge` (AWS)."""
    count: int | None
    """Machines. Default: as many as there are, or 1."""
    min: int | None
    """EKS, OKE: machines that stay between runs, such as 0. Needs `max`."""
    max: int | None
    """EKS, OKE: the most machines of a run, which starts them and ends them after it."""
    region: str | None
    compartment: str | None
    profile: str | None
    context: str | None
    """Account in the SDK's own configuration."""
    file: File | None
    """Spec file; other options win over it."""
    hosts: File | None
    """Inventory of machines that you have."""
    image: str | None
    driver: str | None
    """`auto`, `none`, or a branch of NVIDIA's driver such as `580`."""
    accept_terms: bool
    disk_gb: int | None
    spot: bool
    ssh_cidr: str | None
    """Who may reach SSH, such as `203.0.113.7/32`."""
    subnet_id: str | None
    public_ip: bool
    """False: machines in a private subnet, behind a NAT gateway."""
    bastion: str | None
    """`USER@HOST[:PORT]`"""
    ttl: str | None
    """End the machines after this long, such as `4h`."""
    max_cost: float | None
    """USD. Refuse a plan that could cost more before its `ttl` is over. Needs `ttl`."""
    python: str | None
    """Python on the machines to use; nothing is installed."""
    known_hosts: File | None
    """Where the host keys of `hosts` machines are. Default: your known_hosts."""
    accept_new_host_keys: bool
    boot_timeout: str | None
    """How long machines may take to boot, such as `30m`."""
    wait: bool
    """False: return once the machines run; don't connect yet."""


@dataclass(frozen=True, kw_only=True)
class UpRequest:
    """What `up` was asked for."""

    spec: Spec
    host_keys: HostKeys
    wait: bool
    boot_timeout_s: float | None


SPEC_FIELDS = (
    "provider", "shape", "count", "region", "compartment", "profile", "context", "hosts", "image", "driver",
    "disk_gb", "ssh_cidr", "subnet_id", "bastion", "python",
)  # fmt: skip
"""Options that are fields of the spec, by the same name."""


def up_request(cluster: str | None, options: UpOptions, *, default: str = DEFAULT_CLUSTER) -> UpRequest:
    """What these options ask for. `cluster`: None: the spec file's, else the `default` one.

    Raises InvalidInput and Usage for what can't be.
    """
    from remote.transport.known_hosts import USER_FILES

    refuse_unknown("up", options, UpOptions)
    file = options.get("file")
    spec = Spec(cluster=default) if file is None else read_spec(Path(file), default=default)
    asked: dict[str, Any] = {name: options.get(name) for name in SPEC_FIELDS}
    if asked["hosts"] is not None:
        asked["hosts"] = Path(asked["hosts"])
    asked |= {"min_count": options.get("min"), "max_count": options.get("max")}
    given = {name: check_option(name, value) for name, value in asked.items() if value is not None}
    if (ttl := options.get("ttl")) is not None:
        given["ttl_s"] = check_ttl_s(ttl)
    if (max_cost := options.get("max_cost")) is not None:
        given["max_cost_usd"] = check_max_cost_usd(max_cost)
    if cluster is not None:
        given["cluster"] = cluster
    given |= {name: True for name in ("spot", "accept_terms") if options.get(name)}
    if not options.get("public_ip", True):
        given["public_ip"] = False
    wait, boot_timeout = options.get("wait", True), options.get("boot_timeout")
    if not wait and boot_timeout is not None:
        raise Usage("--no-wait does not wait for machines to boot: leave out --boot-timeout, or --no-wait.")
    known_hosts = options.get("known_hosts")
    return UpRequest(
        spec=check_limits(replace(spec, **given)),
        host_keys=HostKeys(
            files=USER_FILES if known_hosts is None else (Path(known_hosts),),
            accept_new=options.get("accept_new_host_keys", False),
        ),
        wait=wait,
        boot_timeout_s=None if boot_timeout is None else parse_duration_s(boot_timeout, "--boot-timeout"),
    )


def train_request(words: Sequence[str], options: TrainOptions) -> TrainRequest:
    """Return the request of these options. `words`: the script and its arguments, or the built-in job's options.

    Raises Usage for options that are not possible.
    """
    refuse_unknown("train", options, TrainOptions)
    settings = read_options(options, TrainSettings)
    request = TrainRequest(**settings, min_nodes=min_nodes(options.get("nnodes")), words=tuple(words))
    request = with_config(request)
    check_together(request)
    check_earlier(request)
    _check_hangs(request)
    return request


def _check_hangs(request: TrainRequest) -> None:
    """Raise Usage for an action on a hang that another option makes impossible."""
    if not request.ends_hung:
        return
    if request.hang_after == "off":
        raise Usage(f"--on-hang {request.on_hang} needs the watch: leave out --hang-after off.")
    if request.detach:
        raise Usage(f"--on-hang {request.on_hang} needs gpuctl to stay: leave out --detach.")
    if request.on_hang == "restart" and request.max_restarts == 0:
        raise Usage("--on-hang restart counts as one of --max-restarts: give --max-restarts N.")


def bench_request(words: Sequence[str], options: BenchOptions) -> BenchRequest:
    """Return the request of these options. `words`: the script and its arguments, or the built-in job's options.

    Raises Usage for options that are not possible.
    """
    refuse_unknown("bench", options, BenchOptions)
    known = TrainOptions.__annotations__
    job: Any = {name: value for name, value in options.items() if name in known}
    return BenchRequest(**read_options(options, BenchSettings), job=train_request(words, job))
