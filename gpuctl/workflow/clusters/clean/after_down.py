"""Report the files that `down` leaves on machines that stay, and offer to remove them.

No machine holds up `down`: it waits some seconds for their answers, and no error stops it.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from gpuctl.app import App
from gpuctl.json_documents import CleanItem, LeftOnNode
from gpuctl.workflow.clusters.clean.choices import NAMES, Policy, loss_clause
from gpuctl.workflow.clusters.clean.clean import Host, Survey, choose, remove, report_freed
from gpuctl.workflow.clusters.clean.this_computer import runs_here
from inventories.disk.store import ClusterFolder
from inventories.errors import InventoryError
from inventories.machine import Machine
from inventories.text import human_bytes
from inventories.threads import Calls
from remote.errors import RemoteError
from remote.files.leftovers import Leftovers
from remote.shared.constants import NODE_FOLDER

ANSWER_S = 6.0
"""For all machines together."""
CONNECT_S = 3.0
MEASURE_S = 2.0


def report_leftovers(app: App, folder: ClusterFolder, machines: Sequence[Machine]) -> list[LeftOnNode]:
    """Report gpuctl's files on the machines, and remove them after a yes at a terminal.

    Returns an element a machine.
    """
    try:
        runs, inventory = runs_here(app), folder.load()
        hosts = {
            machine.name: Host(cluster=folder, machine=machine, inventory=inventory) for machine in machines
        }
        ask = partial(Host.leftovers, runs=runs, connect_s=CONNECT_S, measure_s=MEASURE_S)
        outcomes = Calls(ask, list(hosts.values()), deadline_s=ANSWER_S).begin().outcomes()
        answers = zip(hosts, outcomes, strict=True)
        leftovers = {name: answer for name, answer in answers if isinstance(answer, Leftovers)}
        if silent := [name for name in hosts if name not in leftovers]:
            app.output.say(
                f"note: {', '.join(silent)}: what gpuctl leaves there is not known, as it did not answer"
            )
        survey = Survey(
            hosts={f"{folder.name}/{name}": host for name, host in hosts.items()},
            leftovers={f"{folder.name}/{name}": answer for name, answer in leftovers.items()},
        )
        items = choose(app, Policy(everything=True), survey, runs, datetime.now(UTC))
        on_nodes = [item for item in items if item.where is not None]
        doomed = [item for item in on_nodes if item.removes]
        if doomed:
            app.output.say(sentence(on_nodes))
            offer(app, doomed, survey)
    except (InventoryError, RemoteError, OSError) as error:
        app.output.say(f"note: what gpuctl leaves on the machines is not known: {error}")
        return [LeftOnNode(node=machine.name, bytes=None) for machine in machines]
    return [
        LeftOnNode(node=name, bytes=by_kind(on_nodes, name) if name in leftovers else None) for name in hosts
    ]


def sentence(items: Sequence[CleanItem]) -> str:
    """Return `gpuctl leaves 3.2 GB on gpu-0, gpu-1: environments 2.9 GB, runs 300 MB`."""
    nodes = list(dict.fromkeys(item.where for item in items if item.where is not None))
    kinds = ", ".join(f"{NAMES[kind]} {human_bytes(size)}" for kind, size in by_kind(items).items())
    return f"gpuctl leaves {human_bytes(sum(item.bytes for item in items))} on {', '.join(nodes)}: {kinds}"


def by_kind(items: Sequence[CleanItem], node: str | None = None) -> Mapping[str, int]:
    """Return kind → bytes, of a node or of all, the largest first."""
    sizes: dict[str, int] = {}
    for item in items:
        if node in (None, item.where):
            sizes[item.kind] = sizes.get(item.kind, 0) + item.bytes
    return dict(sorted(sizes.items(), key=lambda pair: -pair[1]))


def offer(app: App, doomed: Sequence[CleanItem], survey: Survey) -> None:
    """Ask if a user is at a terminal. --yes is no answer: it was given to `down`, which removes no files."""
    size = human_bytes(sum(item.bytes for item in doomed))
    if not app.output.offers:
        app.output.say(
            f"note: `gpuctl clean --all --cluster {doomed[0].cluster}` before `gpuctl down` would have removed "
            f"{size} of it; all of it is in ~/{NODE_FOLDER} there"
        )
    elif app.output.confirm(f"Remove {size} of it{loss_clause(doomed)}?"):
        report_freed(app, remove(app, doomed, survey), doomed, survey)
