"""Ray as KubeRay keeps it: the container of each pod is a Ray node, and the head's dashboard lists all."""

import os
import time
from typing import Any, BinaryIO, Dict

from remote.node.ray.daemons import ASK_S, BEAT_S, NODES, alive, ask, ids_of
from remote.shared import frames

HEAD, PORT, TOKEN = "FQ_RAY_IP", "RAY_PORT", "RAY_AUTH_TOKEN"
"""Variables that KubeRay gives a worker's container."""
DASHBOARD_PORT = 8265
VERSION = "/api/version"


def command_kuberay_ready(request: Dict[str, Any], output: BinaryIO) -> None:
    """`kuberay_ready`: in a worker's pod, wait until Ray counts every node of `expected` as alive.

    `expected`: address → `gpus`. Answers `waiting` with the addresses that are `missing` now and then, at last
    `ready` with those still missing after `deadline_s`; of the others the `ids` by which Ray knows them and their
    `cpus`; the head's `address`; and Ray's `version`, empty where the head does not answer. Raises OSError in
    another pod.
    """
    try:
        host, port, token = (os.environ[name] for name in (HEAD, PORT, TOKEN))
    except KeyError as error:
        raise OSError(
            "this pod is no worker of a RayCluster with a token: it has no variable {}".format(error)
        ) from None
    limit, beat = time.monotonic() + float(request["deadline_s"]), time.monotonic()
    while True:
        nodes = alive(ask(host, DASHBOARD_PORT, token, NODES))
        ids = ids_of(nodes, request["expected"])
        missing = sorted(request["expected"].keys() - ids.keys())
        if not missing or time.monotonic() > limit:
            break
        if time.monotonic() - beat > BEAT_S:
            frames.write(output, {"t": frames.WAITING, "missing": missing})
            beat = time.monotonic()
        time.sleep(ASK_S)
    amounts = {str(node["node_ip"]): node.get("resources_total") or {} for node in nodes}
    cpus = {address: float(amounts[address].get("CPU", 0)) for address in ids}
    version = str(ask(host, DASHBOARD_PORT, token, VERSION).get("ray_version", ""))
    address = "{}:{}".format(host, port)
    frames.write(
        output,
        {
            "t": frames.READY,
            "missing": missing,
            "ids": ids,
            "cpus": cpus,
            "address": address,
            "version": version,
        },
    )
