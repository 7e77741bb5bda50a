"""The requests of `up`, `train`, `bench` and `advise`, made from options of the library or the command line."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpuctl.errors import Usage
from gpuctl.library.keywords import AdviseOptions, BenchOptions, TrainOptions, UpOptions
from gpuctl.option_table.train_options import TrainSettings
from gpuctl.option_table.up_options import UpSettings
from gpuctl.option_table.values import min_nodes, notify_targets, read_options, refuse_unknown
from gpuctl.workflow.runs.request.engine_config import with_config
from gpuctl.workflow.runs.request.request import TrainRequest, check_request
from inventories.specs.spec import DEFAULT_CLUSTER, Spec
from inventories.specs.validate import check_limits, read_spec

if TYPE_CHECKING:
    from gpuctl.app import App
    from gpuctl.command_results.clusters import UpResult
    from gpuctl.workflow.jobs.advise import AdviseRequest
    from gpuctl.workflow.jobs.bench_request import BenchRequest
    from gpuctl.workflow.machines.inventory_files import HostKeys


@dataclass(frozen=True, kw_only=True)
class UpRequest(UpSettings):
    """The settings of `gpuctl up`."""

    spec: Spec

    @property
    def host_keys(self) -> "HostKeys":
        """The source of the host keys of machines that exist already."""
        from gpuctl.workflow.machines.inventory_files import HostKeys
        from remote.transport.known_hosts import USER_FILES

        files = USER_FILES if self.known_hosts is None else (self.known_hosts,)
        return HostKeys(files=files, accept_new=self.accept_new_host_keys)


def up_request(cluster: str | None, options: UpOptions, *, default: str = DEFAULT_CLUSTER) -> UpRequest:
    """Return the request of these options. `cluster`: default: the name in the spec file, else `default`.

    Raises InvalidInput and Usage for options that are not possible.
    """
    refuse_unknown("up", options, UpOptions)
    settings = UpRequest(**read_options(options, UpSettings), spec=Spec(cluster=default))
    if not settings.wait and settings.boot_timeout_s is not None:
        raise Usage("--no-wait does not wait for machines to boot: leave out --boot-timeout, or --no-wait.")
    spec = settings.spec if settings.file is None else read_spec(settings.file, default=default)
    changes = read_options(options, Spec) | ({} if cluster is None else {"cluster": cluster})
    spec = replace(spec, **changes)
    return replace(settings, spec=check_limits(replace(spec, notify=notify_targets(spec.notify))))


def create(app: "App", request: UpRequest) -> "UpResult":
    """Create or extend a cluster as requested, and return its machines."""
    from gpuctl.workflow.clusters.up import up
    from gpuctl.workflow.machines.notify import failure_sent
    from gpuctl.workflow.runs.unfinished_runs import runs_of_cluster

    spec = request.spec
    with failure_sent(app, spec.notify, "up", spec.cluster):
        return up(
            app,
            spec,
            request.host_keys,
            runs=runs_of_cluster(app, spec.cluster),
            wait=request.wait,
            boot_timeout_s=request.boot_timeout_s,
        )


def train_request(words: Sequence[str], options: TrainOptions) -> TrainRequest:
    """Return the request of these options. `words`: the script and its arguments, or the built-in job's options.

    Raises Usage for options that are not possible.
    """
    refuse_unknown("train", options, TrainOptions)
    settings = read_options(options, TrainSettings)
    request = TrainRequest(**settings, min_nodes=min_nodes(options.get("nnodes")), words=tuple(words))
    request = with_config(request)
    check_request(request)
    return request


def bench_request(words: Sequence[str], options: BenchOptions) -> "BenchRequest":
    """Return the request of these options. `words`: the script and its arguments, or the built-in job's options.

    Raises Usage for options that are not possible.
    """
    from gpuctl.option_table.bench_options import BenchSettings
    from gpuctl.workflow.jobs.bench_request import BenchRequest

    refuse_unknown("bench", options, BenchOptions)
    known = TrainOptions.__annotations__
    job: Any = {name: value for name, value in options.items() if name in known}
    return BenchRequest(**read_options(options, BenchSettings), job=train_request(words, job))


def advise_request(words: Sequence[str], options: AdviseOptions) -> "AdviseRequest":
    """Return the request of these options. `words`: the built-in job's options. Raises Usage for a wrong one."""
    from gpuctl.option_table.advise_options import AdviseSettings  # only advise needs the catalogs
    from gpuctl.workflow.jobs.advise import AdviseRequest

    refuse_unknown("advise", options, AdviseOptions)
    return AdviseRequest(**read_options(options, AdviseSettings), words=tuple(words))
