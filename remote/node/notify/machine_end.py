"""The end of machines that is near: the cluster's time, too long a time without use, a spot machine that is taken."""

import json
import time
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from remote.node import process
from remote.node.notify.texts import clock, span
from remote.shared.constants import IDLE_STATE
from remote.shared.files import read_json
from remote.shared.notify.message import Notice, notice

WARN_S = 600.0
"""Before the end of the cluster's time."""
WARN_IDLE_S = 300.0
"""Before the end for want of use."""
IMDS = "http://169.254.169.254"
IMDS_S = 2.0
"""Deadline of a request to the machine's metadata."""


class MachineEnd:
    """The signs that a machine ends soon."""

    def __init__(
        self, machine: Mapping[str, Any], *, idle_state: str = IDLE_STATE, metadata: str = IMDS
    ) -> None:
        """Watch a machine.

        `machine`: `cluster`, `node`; `first`: whether it is the cluster's first, which announces the end of all;
        `ends_at` (Unix seconds, `None`: never); `spot` (`aws`, or empty).
        """
        self._machine = machine
        self._idle_state = Path(idle_state)
        self._metadata = metadata

    def poll(self, now: float) -> List[Notice]:
        """Return the notices of ends that are near; an end has the same notice at each look."""
        notices = [self._of_spot(now)]
        if self._machine["first"]:
            notices += [self._of_time(now), self._of_use(now)]
        return [each for each in notices if each is not None]

    def _of_time(self, now: float) -> Optional[Notice]:
        ends_at = self._machine["ends_at"]
        if ends_at is None or not ends_at - WARN_S <= now < ends_at:
            return None
        cluster = self._machine["cluster"]
        title = "The machines of {} end in {}: their time is over".format(cluster, span(ends_at - now))
        lines = ["at {}".format(clock(ends_at)), "gpuctl pull --cluster {}".format(cluster)]
        return self._notice("{} ends {}".format(cluster, ends_at), now, ends_at, title, lines)

    def _of_use(self, now: float) -> Optional[Notice]:
        """Return the notice of an end for want of use, as the machine's watch announces it."""
        watch = read_json(self._idle_state)
        if not watch:
            return None
        left_s = float(watch["ends_at_s"]) - time.clock_gettime(time.CLOCK_BOOTTIME)
        if not 0 <= left_s <= WARN_IDLE_S:
            return None
        cluster, ends_at = self._machine["cluster"], now + left_s
        title = "The machines of {} end in {}: nobody uses them".format(cluster, span(left_s))
        # The time of the last use stays the same while the machine is idle.
        event = "{} idle {} {}".format(cluster, process.boot_id(), round(watch["last_use_s"]))
        return self._notice(event, now, ends_at, title, ["gpuctl keep 1h --cluster {}".format(cluster)])

    def _of_spot(self, now: float) -> Optional[Notice]:
        """Return the notice of a spot machine that AWS takes back, two minutes ahead."""
        ends_at = self._spot_end() if self._machine["spot"] == "aws" else None
        if ends_at is None:
            return None
        node, cluster = self._machine["node"], self._machine["cluster"]
        left = span(max(0.0, ends_at - now))
        title = "{} of {} ends in {}: AWS takes the spot machine".format(node, cluster, left)
        event = "{} {} spot {}".format(cluster, node, round(ends_at))
        return self._notice(event, now, ends_at, title, ["gpuctl status --cluster {}".format(cluster)])

    def _spot_end(self) -> Optional[float]:
        """Return when the spot machine ends, Unix seconds. `None`: it stays, as far as its metadata says."""
        try:
            seconds = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
            token = self._request("/latest/api/token", "PUT", seconds).decode()
            headers = {"X-aws-ec2-metadata-token": token}
            action = json.loads(self._request("/latest/meta-data/spot/instance-action", "GET", headers))
            return datetime.fromisoformat(action["time"].replace("Z", "+00:00")).timestamp()
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            OverflowError,
        ):  # HTTP status 404: no interruption is planned
            return None

    def _request(self, path: str, method: str, headers: Dict[str, str]) -> bytes:
        url = self._metadata + path
        request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310 - a constant address
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=IMDS_S) as answer:
            body: bytes = answer.read(4096)
            return body

    def _notice(self, event: str, now: float, ends_at: float, title: str, lines: List[str]) -> Notice:
        data = {"cluster": self._machine["cluster"], "node": self._machine["node"], "ends_at": ends_at}
        return notice(
            event, type="machines.ending", at=now, tone="warning", title=title, lines=lines, data=data
        )
