"""The defaults of the user's configuration in the spec of a new cluster. Options and spec files win over them."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuctl.app import App
from gpuctl.text import with_tilde
from gpuctl.workflow.machines.notify import default_targets
from inventories.disk.store import ClusterFolder
from inventories.errors import InvalidInput
from inventories.specs.checks import NO_LIMIT_S
from inventories.specs.config import Config
from inventories.specs.spec import Spec
from provision.clouds import CLOUDS, RENTED, base_of, cloud_of
from provision.errors import RefusedPlan
from provision.pricing.spending import ttl_text
from provision.provider import Provider
from provision.records import CloudCluster
from provision.rented.state import CloudState
from provision.unsupported_options import OPTIONS, supported


def with_defaults(
    app: App, spec: Spec, folder: ClusterFolder, provider: Provider
) -> tuple[Spec, tuple[str, ...]]:
    """Return the spec with the configuration's values for open options, and notes that name them.

    Only a new cluster takes them: an existing one keeps its own.
    """
    if provider.name not in RENTED:
        return spec, ()
    endless = [name for name in ("ttl_s", "idle_s") if getattr(spec, name) == NO_LIMIT_S]
    without_end: dict[str, Any] = dict.fromkeys(endless)
    unlimited = replace(spec, **without_end)
    state = CloudState(folder)
    record = state.load()
    # A mistake in the file keeps nobody from ending machines of an existing cluster.
    may_begin = record is None or (provider.name in CLOUDS and spec.shape is not None)
    if may_begin and app.config == Config() and not endless:
        return spec, ()
    # A cluster without any machine gets new ones as a new cluster does.
    if record is not None and (not may_begin or state.open_launches() or provider.find()):
        _refuse_to_unlimit(record, endless)
        return unlimited, ()
    config, path = app.config, app.config_path
    values: dict[str, Any] = {
        "region": None if record is not None else _region_of(config, path, provider.name),
        "ttl_s": config.ttl_s,
        "idle_s": config.idle_s,
        "ssh_cidr": config.ssh_cidr,
    }
    open_values = {
        name: value
        for name, value in values.items()
        if value not in (None, NO_LIMIT_S) and getattr(spec, name) is None
    }
    defaults = {name: value for name, value in open_values.items() if name in supported(provider.name)}
    targets = () if spec.notify else default_targets(app)
    notes, source = [], f"the default in {with_tilde(str(path))}"
    texts = [
        *(f"{OPTIONS[n]} {ttl_text(v) if isinstance(v, float) else v}" for n, v in defaults.items()),
        *["--notify"] * bool(targets),
    ]
    if texts:
        notes.append(f"{', '.join(texts)}: {source}")
    if unused := [OPTIONS[name] for name in open_values if name not in defaults]:
        notes.append(f"{provider.name} has no {', '.join(unused)}: {source} has no effect")
    return replace(unlimited, **defaults, notify=spec.notify or targets), tuple(notes)


def _refuse_to_unlimit(record: CloudCluster, fields: Iterable[str]) -> None:
    """Raise RefusedPlan for `none` in place of a limit that the machines were made with."""
    for name in fields:
        if (limit_s := getattr(record, name)) is not None:
            raise RefusedPlan(
                f"The machines of cluster '{record.name}' were made with {OPTIONS[name]} {ttl_text(limit_s)}, which "
                f"stays: leave out {OPTIONS[name]} none, or make a second cluster with `--cluster NAME`."
            )


def _region_of(config: Config, path: Path, provider: str) -> str | None:
    """Return the configured region of a provider's cloud. Raises InvalidInput for a region of no cloud."""
    clouds = {region: cloud_of(region) for region in config.region}
    if strange := [region for region, cloud in clouds.items() if cloud is None]:
        raise InvalidInput(
            f"{path}: key 'region': no cloud has regions with a name like '{strange[0]}'. Write it in full, as in "
            "us-east-1."
        )
    return next((region for region, cloud in clouds.items() if cloud == base_of(provider)), None)
