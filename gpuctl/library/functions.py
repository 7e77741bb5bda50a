"""The functions of `import gpuctl`: create and find clusters, list runs and results."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Unpack

from gpuctl.command_results.clusters import ClusterSummary, CostResult, UpPlan
from gpuctl.command_results.runs import AdviceRow, RunInfo
from gpuctl.global_options import DEFAULT_CLUSTER
from gpuctl.library.cluster import Cluster
from gpuctl.library.keywords import AdviseOptions, UpOptions
from gpuctl.library.options import advise_request, create, up_request
from gpuctl.library.silent_output import Confirm, Progress, silent_app
from gpuctl.option_table.values import several
from inventories.errors import InventoryError
from inventories.runs.result import Result


def up(
    cluster: str | None = None,
    *,
    keep: bool = False,
    confirm: Confirm = None,
    progress: Progress = None,
    **options: Unpack[UpOptions],
) -> Cluster:
    """Create a cluster's machines, wait for them and return the cluster; again: converge.

    `gpuctl up` has the same options. The end of the `with` block removes the machines, also machines that existed
    before this call, unless a run is active that the returned object did not start. `keep`: the machines stay.
    `confirm`: True, or a function that gets the question with the price and returns True, agrees to the price.
    `progress`: a function that gets each line on the work. Raises Usage without an agreement, Declined after a no,
    NoCapacity, and Attention for machines whose GPUs or setup failed. Machines that were created before an error or
    Ctrl-C stay, and a note of the error says so: `gpuctl.cluster(NAME).down()` removes them.

        with gpuctl.up(provider="local", count=2) as cluster:
            run = cluster.train("my.py")
    """
    request = up_request(cluster, options)
    app = silent_app(request.spec.cluster, confirm=confirm, progress=progress)
    made = Cluster(app, keep=keep)
    try:
        create(app, request)
    except (Exception, KeyboardInterrupt) as error:
        with suppress(InventoryError):  # it must not replace the first error
            if made.name in {folder.name for folder in app.store.clusters()}:
                error.add_note(
                    f"gpuctl: machines may be there: gpuctl.cluster({made.name!r}).down() removes them"
                )
        raise
    return made


def plan(cluster: str | None = None, *, progress: Progress = None, **options: Unpack[UpOptions]) -> UpPlan:
    """Return the changes that `up` would make with these options, and their price. Creates nothing.

    If the account does not answer, `account_asked` is False, and the plan is for an empty account.
    """
    from gpuctl.workflow.clusters.up import plan as planned
    from gpuctl.workflow.clusters.up_plan import document

    request = up_request(cluster, options)
    app = silent_app(request.spec.cluster, progress=progress)
    changes, setup, unasked = planned(app, request.spec, boot_timeout_s=request.boot_timeout_s)
    return document(changes, setup, account_asked=not unasked)


def cluster(
    name: str = DEFAULT_CLUSTER,
    *,
    keep: bool = True,
    confirm: Confirm = None,
    progress: Progress = None,
) -> Cluster:
    """Return an existing cluster. Raises NotFound for an unknown name.

    `keep`: False: leaving the `with` block brings it down. `progress`, `confirm`: as for `up`.
    """
    app = silent_app(name, confirm=confirm, progress=progress)
    existing = Cluster(app, keep=keep)
    if name not in {folder.name for folder in app.store.clusters()}:
        _ = existing.machines  # raises, with the way to make one
    return existing


def clusters(*, progress: Progress = None) -> tuple[ClusterSummary, ...]:
    """Return every cluster of this computer with its real state, the most expensive first.

    One whose provider can't be asked has the state `unknown`, and the reason as its `problem`.
    """
    from gpuctl.workflow.clusters.clusters import every_cluster

    return tuple(every_cluster(silent_app(DEFAULT_CLUSTER, progress=progress)))


def cost(since: str | None = None, *, progress: Progress = None) -> CostResult:
    """Return the costs of clusters and runs by list price, since a day such as `2026-11-01`, or the last `7d`.

    `None`: since the month began (UTC). Asks the clouds which clusters exist; unknown prices and ends are named in
    the fields `unknown`. Raises Usage for another text.
    """
    from gpuctl.workflow.clusters.cost import cost_of_clusters, since_of

    app = silent_app(DEFAULT_CLUSTER, progress=progress)
    return cost_of_clusters(app, since_of(since, datetime.now(UTC)))


def results(
    *runs: str,
    last: int | None = None,
    tags: Mapping[str, str] | None = None,
    cluster: str = DEFAULT_CLUSTER,
    progress: Progress = None,
) -> tuple[Result, ...]:
    """Return the results of these runs (a name, an id's end, `latest`, `best`), or of the cluster's latest.

    `tags`, `last`: the runs of the cluster that have all of these tags, of them the last ones. A run that is not over
    is updated first. Raises NotFound for an unknown run, Usage for runs together with `tags` or `last`.

        best, *_ = gpuctl.results("best", tags={"sweep": "lr"})
    """
    from gpuctl.workflow.runs.results import results_of

    return tuple(results_of(silent_app(cluster, progress=progress), runs, last=last, tags=tags))


def report(
    *runs: str,
    file: "str | PathLike[str]",
    last: int | None = None,
    tags: Mapping[str, str] | None = None,
    cluster: str = DEFAULT_CLUSTER,
    progress: Progress = None,
) -> Path:
    """Write a report of runs as one HTML file, chosen as by `results`, and return its path.

    gpuctl.report(tags={"sweep": "lr"}, file="report.html")
    """
    from gpuctl.run_report.page import check_report, write_report

    path = Path(file)
    check_report(path)
    write_report(results(*runs, last=last, tags=tags, cluster=cluster, progress=progress), path)
    return path


def runs(cluster: str | None = None, *, progress: Progress = None) -> tuple[RunInfo, ...]:
    """Return the runs of a cluster, or of all, also of removed ones; the latest last."""
    from gpuctl.workflow.runs.unfinished_runs import overview

    return tuple(overview(silent_app(cluster or DEFAULT_CLUSTER, progress=progress), cluster))


def advise(
    args: Sequence[str], *, progress: Progress = None, **options: Unpack[AdviseOptions]
) -> tuple[AdviceRow, ...]:
    """Return the machines on which a model fits, with strategy, speed and price. Rents nothing.

    `args` are the built-in job's options, such as `["--model", "gpt-1b"]`; the other arguments are options of `gpuctl
    advise`. Fitting rows come first, by dollars; the others by their lack of memory. `progress` also gets the
    assumptions. Raises Usage for questions without an answer.
    """
    from gpuctl.workflow.jobs.advise import advise as advised

    request = advise_request(several("args", args), options)
    return advised(silent_app(DEFAULT_CLUSTER, progress=progress), request).rows
