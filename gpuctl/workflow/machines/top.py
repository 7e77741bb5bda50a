"""`top`: how busy the nodes are, live on a terminal, else one sample."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from gpuctl.app import App
from gpuctl.workflow.machines.connect import load_inventory
from inventories.clocks import awake_s
from inventories.disk.store import ClusterFolder
from inventories.machine import Machine

REFRESH_S = 0.5
"""Time between two drawings of the table, whatever the samples' times."""


def top(app: App, *, rank: str | None, every_s: float) -> int:
    """Show the table; return the exit status: 1 if a node of a single sample did not answer."""
    folder = app.store.cluster(app.options.cluster)
    inventory = load_inventory(folder)
    machines = inventory.machines if rank is None else (inventory.machine(rank),)
    machines = tuple(sorted(machines, key=lambda machine: machine.rank))
    stdout = app.output.stdout
    unicode = (stdout.encoding or "utf-8").lower().startswith("utf")
    if not app.options.json and stdout.isatty() and os.environ.get("TERM") != "dumb" and unicode:
        return _live(app, machines, inventory.machines, folder, every_s=every_s)
    from remote.runs.usage import read_once

    readings = read_once(machines, inventory.machines, folder)
    if app.options.json:
        for reading in readings:
            if reading.error:
                app.output.error(reading.error)
        nodes = [replace(reading, heard_s=None) for reading in readings]
        app.output.json({"cluster": app.options.cluster, "nodes": nodes})
    else:
        from gpuctl.tables.top import top_table

        app.output.table(top_table(readings))
    return 1 if any(reading.state == "lost" for reading in readings) else 0


def _live(
    app: App,
    machines: Sequence[Machine],
    all_machines: Sequence[Machine],
    cluster: ClusterFolder,
    *,
    every_s: float,
) -> int:
    """Draw until Ctrl-C, which is the way to end it and no failure; the last table stays."""
    from rich.live import Live

    from gpuctl.tables.top import top_table
    from remote.runs.usage import Watching

    console = app.output.console(app.output.stdout)
    try:
        with (
            Watching(machines, all_machines, cluster, every_s=every_s) as watching,
            Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live,
        ):
            while True:
                live.update(top_table(watching.readings(), now_s=awake_s()), refresh=True)
                time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        return 0
