"""Types of the library's keywords, written by `make docs`: change `gpuctl.option_table`."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Literal, TypeAlias, TypedDict

File: TypeAlias = str | PathLike[str]


class TrainOptions(TypedDict, total=False):
    """The options of `gpuctl train`."""

    mode: str | None
    nnodes: int | str | None
    nproc_per_node: int | Literal["auto"] | None
    nodes: Sequence[str]
    gpus: int | None
    name: str | None
    note: str | None
    tags: Mapping[str, str]
    detach: bool
    device: Literal["auto", "cpu"] | None
    env: Mapping[str, str]
    python: str | None
    pip: Sequence[str]
    requirements: File | None
    wheels: File | None
    install_project: bool
    root: File | None
    include: Sequence[File]
    bring: Sequence[str]
    fresh: bool
    share_outputs: bool
    skip_preflight: bool
    resume: bool
    resume_from: str | None
    max_restarts: int
    hang_after: str | None
    on_hang: Literal["report", "stop", "restart"] | None
    end_if_gpu_below: str | None
    gpu_below_for: str | None
    stop_grace: str | None
    notify: Sequence[str]
    module: str | None
    project: File | None
    allow_large: bool


class UpOptions(TypedDict, total=False):
    """The options of `gpuctl up`."""

    provider: str | None
    shape: str | None
    count: int | None
    min: int | None
    max: int | None
    region: str | None
    compartment: str | None
    profile: str | None
    context: str | None
    image: str | None
    driver: str | None
    accept_terms: bool
    disk_gb: int | None
    spot: bool
    ssh_cidr: str | None
    subnet_id: str | None
    public_ip: bool
    bastion: str | None
    ttl: str | None
    idle: str | None
    max_cost: float | None
    notify: Sequence[str]
    hosts: File | None
    python: str | None
    file: File | None
    known_hosts: File | None
    accept_new_host_keys: bool
    boot_timeout: str | None
    wait: bool


class AdviseOptions(TypedDict, total=False):
    """The options of `gpuctl advise`."""

    batch_tokens: float | str | None
    tokens: float | str | None
    shapes: Sequence[str]
    counts: Sequence[int | str]
    provider: str | None
    region: str | None
    check: bool


class BenchOptions(TypedDict, total=False):
    """The options of `gpuctl bench`."""

    layouts: Sequence[str]
    repeats: int
    forecast: Sequence[str]
    bandwidth_gb_s: float | None
    device: Literal["auto", "cpu"] | None
    env: Mapping[str, str]
    python: str | None
    pip: Sequence[str]
    requirements: File | None
    wheels: File | None
    install_project: bool
    root: File | None
    include: Sequence[File]
    stop_grace: str | None
    notify: Sequence[str]
    module: str | None
    project: File | None
    allow_large: bool
