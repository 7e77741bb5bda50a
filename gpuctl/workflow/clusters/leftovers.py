"""Report the files that `down` leaves on machines that stay, and offer to remove them.

No machine holds up `down`: it waits some seconds for their answers, and no error stops it.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from gpuctl.app import App
from gpuctl.json_documents import LeftOnNode
from gpuctl.workflow.clusters.clean.clean import Host, Survey, choose, remove, report_freed
from gpuctl.workflow.clusters.clean.this_computer import runs_here
from gpuctl.workflow.clusters.clean.what_to_clean import NAMES, Choice, Policy, loss_clause
from inventories.disk.store import ClusterFolder
from inventories.errors import InventoryError
from inventories.machine import Machine
from inventories.text import human_bytes
from inventories.threads import Calls, Late, values
from remote.errors import RemoteError
from remote.files.leftovers import Leftovers, find_leftovers
from remote.sessions.connect import connect
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
        return _survey_and_offer(app, folder, machines)
    except (InventoryError, RemoteError, OSError) as error:
        app.output.say(f"note: what gpuctl leaves on the machines is not known: {error}")
        return [LeftOnNode(node=machine.name, bytes=None) for machine in machines]


def _survey_and_offer(app: App, folder: ClusterFolder, machines: Sequence[Machine]) -> list[LeftOnNode]:
    runs = runs_here(app)
    inventory = folder.load()
    hosts = {machine.name: Host(cluster=folder, machine=machine, inventory=inventory) for machine in machines}
    built_in = [run.id for run in runs if run.built_in]

    def examine(host: Host) -> Leftovers | None:
        return _examine(host, built_in)

    outcomes = Calls(examine, list(hosts.values()), deadline_s=ANSWER_S).begin().outcomes()
    answers = values([None if isinstance(outcome, Late) else outcome for outcome in outcomes])
    leftovers = dict(zip(hosts, answers, strict=True))
    answered = {name: left for name, left in leftovers.items() if left is not None}
    silent = [name for name, left in leftovers.items() if left is None]
    if silent:
        app.output.say(
            f"note: {', '.join(silent)}: what gpuctl leaves there is not known, as it did not answer"
        )
    survey = Survey(
        hosts={host.key: host for host in hosts.values()},
        leftovers={hosts[name].key: left for name, left in answered.items()},
        errors={hosts[name].key: "it did not answer" for name in silent},
    )
    choices = [
        choice
        for choice in choose(app, Policy(everything=True), survey, runs, datetime.now(UTC))
        if choice.where is not None
    ]
    doomed = [choice for choice in choices if choice.removes]
    if doomed:
        app.output.say(sentence(choices))
        offer(app, doomed, survey)
    return [
        LeftOnNode(node=name, bytes=None if left is None else by_kind(choices, name))
        for name, left in leftovers.items()
    ]


def _examine(host: Host, built_in: Sequence[str]) -> Leftovers | None:
    try:
        with connect(host.machine, host.cluster, timeout_s=CONNECT_S) as node:
            return find_leftovers(node, built_in=built_in, measure_s=MEASURE_S)
    except (RemoteError, OSError):
        return None


def sentence(choices: Sequence[Choice]) -> str:
    """`gpuctl leaves 3.2 GB on gpu-0, gpu-1: environments 2.9 GB, runs 300 MB`."""
    nodes = list(dict.fromkeys(choice.where for choice in choices if choice.where is not None))
    kinds = ", ".join(f"{NAMES[kind]} {human_bytes(size)}" for kind, size in by_kind(choices).items())
    total = human_bytes(sum(choice.bytes for choice in choices))
    return f"gpuctl leaves {total} on {', '.join(nodes)}: {kinds}"


def by_kind(choices: Sequence[Choice], node: str | None = None) -> Mapping[str, int]:
    """Return kind → bytes, of a node or of all, the largest first."""
    sizes: dict[str, int] = {}
    for choice in choices:
        if node in (None, choice.where):
            sizes[choice.kind] = sizes.get(choice.kind, 0) + choice.bytes
    return dict(sorted(sizes.items(), key=lambda pair: -pair[1]))


def offer(app: App, doomed: Sequence[Choice], survey: Survey) -> None:
    """Ask, where somebody is there to answer. --yes is no answer: it was said to `down`, which removes no files."""
    size = human_bytes(sum(choice.bytes for choice in doomed))
    if not app.output.offers:
        app.output.say(
            f"note: `gpuctl clean --all --cluster {doomed[0].cluster}` before `gpuctl down` would have removed "
            f"{size} of it; all of it is in ~/{NODE_FOLDER} there"
        )
        return
    if app.output.confirm(f"Remove {size} of it{loss_clause(doomed)}?"):
        report_freed(app, remove(app, doomed, survey), doomed, survey)
