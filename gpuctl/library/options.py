"""What `up`, `train` and `bench` accept, and what is made of it, for the library and for the command line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, get_args

from gpuctl.environment_variables import variable
from gpuctl.errors import Usage
from gpuctl.scaling.measurements import Layout, parse_layouts
from gpuctl.workflow.clusters.up import HostKeys
from gpuctl.workflow.jobs.bench_request import LEAST_REPEATS, MOST_REPEATS, BenchRequest
from gpuctl.workflow.runs.outputs.earlier import check_earlier
from gpuctl.workflow.runs.request.engine_config import with_config
from gpuctl.workflow.runs.request.request import TrainRequest, check_bring, check_together
from inventories.did_you_mean import did_you_mean
from inventories.hang import OnHang
from inventories.spec import DEFAULT_CLUSTER, Spec
from inventories.validate import (
    check_limits,
    check_max_cost_usd,
    check_option,
    check_stop_grace_s,
    check_ttl_s,
    parse_duration_s,
    read_spec,
)
from remote.launchers import LAUNCHERS

File: TypeAlias = str | PathLike[str]
Value = TypeVar("Value")
MOST_PROCESSES = 1024
"""On a node."""
MOST_RESTARTS = 1000


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


class TrainOptions(TypedDict, total=False):
    """The options of `gpuctl train`, named as on the command line."""

    module: str | None
    """Run this module in place of a script."""
    mode: str | None
    """`torchrun` or `ray`. Default: torchrun, or the earlier run's."""
    nnodes: int | str | None
    """Nodes that take part: a number, or `MIN:MAX`. Default: all."""
    nproc_per_node: int | Literal["auto"] | None
    """Default: one a GPU, else one."""
    detach: bool
    """Return when the ranks have started."""
    device: Literal["auto", "cpu"] | None
    env: Mapping[str, str]
    """Variables for every rank."""
    python: str | None
    pip: Sequence[str]
    requirements: File | None
    wheels: File | None
    install_project: bool
    """False: the project that the script is in is not installed, only what it needs."""
    skip_preflight: bool
    resume: bool
    """Resume from the latest checkpoint of the script."""
    resume_from: str | None
    """Resume from this run's checkpoints."""
    max_restarts: int
    hang_after: str | None
    """Time without progress after which the run counts as hung, such as `10m`; `off`. Default: by its own past."""
    on_hang: OnHang | None
    """What is done then: `report` (default), `stop`, `restart`."""
    stop_grace: str | None
    """How long ranks that are stopped get to save before they are killed, such as `5m`. Default: `30s`."""
    project: File | None
    """The folder that holds the script, and in whose copy it runs. Default: the current one."""
    root: File | None
    """The folder that is sent to the nodes. Default: the git repository that `project` is in, else `project`."""
    include: Sequence[File]
    """Files and folders in it that are sent although git ignores them; relative to `project`."""
    bring: Sequence[str]
    """Patterns of what the run writes into its folder and is to come back in any size; `["none"]`: nothing is."""
    fresh: bool
    """Begin with what is sent alone: what earlier runs wrote into that folder is put aside on the nodes."""
    share_outputs: bool
    """Put what earlier runs wrote into the folder of rank 0's node on all nodes."""
    allow_large: bool
    """Send that folder however large it is. Default: one that is too large is refused."""


class BenchOptions(TypedDict, total=False):
    """The options of `gpuctl bench`, named as on the command line."""

    layouts: Sequence[str]
    """Nodes x processes a node, such as `2x4`. Default: one process, one whole node, all nodes."""
    repeats: int
    """Timed runs of each layout, after one that warms up. Default: 3."""
    forecast: Sequence[str]
    """Layouts to forecast."""
    bandwidth_gb_s: float | None
    """Between nodes, for the forecast. Default: measured."""
    device: Literal["auto", "cpu"] | None
    env: Mapping[str, str]
    python: str | None
    module: str | None
    """Measure this module in place of a script."""
    pip: Sequence[str]
    requirements: File | None
    wheels: File | None
    install_project: bool
    project: File | None
    """The folder that holds the script. Default: the current one."""
    root: File | None
    include: Sequence[File]
    allow_large: bool
    stop_grace: str | None


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
    from remote.transport.host_keys import USER_FILES

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
    """What these options ask for; `words`: the script and its arguments, or those of the module or built-in job.

    Raises Usage for what can't be.
    """
    refuse_unknown("train", options, TrainOptions)
    min_nodes, max_nodes = _nnodes(options.get("nnodes"))
    mode, restarts = options.get("mode"), options.get("max_restarts", 0)
    if mode not in (None, *LAUNCHERS):
        raise Usage(f"--mode {mode} is not possible: give {' or '.join(LAUNCHERS)}.")
    if not 0 <= restarts <= MOST_RESTARTS:
        raise Usage(f"--max-restarts {restarts} is not possible: give a number from 0 to {MOST_RESTARTS}.")
    project = _there("project", options.get("project"), Path.is_dir)
    root = _there("root", options.get("root"), Path.is_dir)
    request = TrainRequest(
        launcher=mode,
        nnodes=max_nodes,
        min_nodes=min_nodes,
        nproc_per_node=_nproc(options.get("nproc_per_node")),
        detach=options.get("detach", False),
        device=options.get("device"),
        env=_env(options.get("env", {})),
        python=options.get("python"),
        pip=tuple(several("pip", options.get("pip", ()))),
        requirements=_there("requirements", options.get("requirements"), Path.is_file),
        wheels=_there("wheels", options.get("wheels"), Path.is_dir),
        install_project=options.get("install_project", True),
        skip_preflight=options.get("skip_preflight", False),
        module=options.get("module"),
        words=tuple(words),
        project=None if project is None else project.absolute(),
        root=None if root is None else root.absolute(),
        include=tuple(Path(path) for path in several("include", options.get("include", ()))),
        bring=check_bring(several("bring", options.get("bring", ()))),
        fresh=options.get("fresh", False),
        share_outputs=options.get("share_outputs", False),
        allow_large=options.get("allow_large", False),
        resume=options.get("resume", False),
        resume_from=options.get("resume_from"),
        max_restarts=restarts,
        hang_after=_hang_after(options.get("hang_after")),
        on_hang=options.get("on_hang"),
        stop_grace_s=None if (grace := options.get("stop_grace")) is None else check_stop_grace_s(grace),
    )
    request = with_config(request)
    check_together(request)
    check_earlier(request)
    _check_hangs(request)
    return request


def _hang_after(given: str | None) -> float | Literal["off"] | None:
    """What --hang-after says. Raises InvalidInput."""
    if given in (None, "off"):
        return given  # type: ignore[return-value]
    return parse_duration_s(given, "--hang-after")


def _check_hangs(request: TrainRequest) -> None:
    """Raises Usage where nobody would be there to do what is asked for."""
    if request.on_hang not in (None, *get_args(OnHang)):
        raise Usage(f"--on-hang {request.on_hang} is not possible: give {', '.join(get_args(OnHang))}.")
    if not request.ends_hung:
        return
    if request.hang_after == "off":
        raise Usage(f"--on-hang {request.on_hang} needs the watch: leave out --hang-after off.")
    if request.detach:
        raise Usage(f"--on-hang {request.on_hang} needs gpuctl to stay: leave out --detach.")
    if request.on_hang == "restart" and request.max_restarts == 0:
        raise Usage("--on-hang restart counts as one of --max-restarts: give --max-restarts N.")


def bench_request(words: Sequence[str], options: BenchOptions) -> BenchRequest:
    """What these options ask for; `words`: the script and its arguments, or the built-in job's options.

    Raises Usage for what can't be.
    """
    refuse_unknown("bench", options, BenchOptions)

    def layouts(names: Sequence[str], option: str) -> tuple[Layout, ...]:
        names = several(option.removeprefix("--"), names)
        return parse_layouts(",".join(names), option) if names else ()

    job: TrainOptions = {
        name: value for name, value in options.items() if name in TrainOptions.__annotations__
    }  # type: ignore[assignment]
    repeats = options.get("repeats", LEAST_REPEATS)
    if not LEAST_REPEATS <= repeats <= MOST_REPEATS:
        raise Usage(
            f"--repeats {repeats} is not possible: give a number from {LEAST_REPEATS} to {MOST_REPEATS}."
        )
    return BenchRequest(
        layouts=layouts(options.get("layouts", ()), "--layouts"),
        repeats=repeats,
        forecast=layouts(options.get("forecast", ()), "--forecast"),
        bandwidth_gb_s=options.get("bandwidth_gb_s"),
        job=train_request(words, job),
    )


def several(name: str, values: Sequence[Value]) -> Sequence[Value]:
    """These values. Raises TypeError for a str, which would be taken for one value a letter."""
    if isinstance(values, str | bytes | PathLike):
        one = values.split() if isinstance(values, str) and name == "args" else [values]
        raise TypeError(f"{name} is a list, such as {name}={one!r}, and not a {type(values).__name__}")
    return values


def refuse_unknown(function: str, options: Mapping[str, Any], known: type) -> None:
    """Raise TypeError, as Python does, for an option that there is not: it would be left out without a word."""
    for name in options:
        if name not in known.__annotations__:
            near = did_you_mean(name, known.__annotations__)
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'{near}")


def _env(variables: Mapping[str, str]) -> dict[str, str]:
    return dict(variable(f"{name}={value}") for name, value in variables.items())


def _there(option: str, file: File | None, exists: Callable[[Path], bool]) -> Path | None:
    """A file or folder of this computer. Raises Usage where it is not there."""
    if file is None or exists(Path(file)):
        return None if file is None else Path(file)
    raise Usage(f"--{option}: there is no {'file' if exists is Path.is_file else 'folder'} {file}.")


def _nnodes(asked: int | str | None) -> tuple[int | None, int | None]:
    """Of `--nnodes`: the fewest, None where it is not elastic, and the most."""
    if asked is None:
        return None, None
    text = str(asked)
    least, colon, most = text.rpartition(":")
    if not most.isdecimal() or (colon and not least.isdecimal()):
        raise Usage(f"--nnodes {text} is not possible: give a number of nodes, or MIN:MAX, such as 1:4.")
    if int(most) < 1:
        raise Usage(f"--nnodes {text} is not possible: it must be at least 1.")
    if colon and not 1 <= int(least) <= int(most):
        raise Usage(f"--nnodes {text} is not possible: MIN must be at least 1, and MAX at least MIN.")
    return int(least) if colon else None, int(most)


def _nproc(asked: int | str | None) -> int | Literal["auto"] | None:
    if asked is None or asked == "auto":
        return None if asked is None else "auto"
    text = str(asked)
    if not text.isdigit() or not 1 <= int(text) <= MOST_PROCESSES:
        raise Usage(
            f"--nproc-per-node {text} is not possible: give auto, or a number from 1 to {MOST_PROCESSES}."
        )
    return int(text)
