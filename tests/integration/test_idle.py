"""Test the end of clusters without use (`up --idle`), on hosts like VMs that the watch of the user-data runs on."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clouds import KINDS, CloudGpuctl

from tests.fakes.client import start_fake
from tests.fakes.vm_hosts import POWER_OFF_ASKED
from tests.fakes.vms import lacking

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=lacking() or "")]

IDLE_S = 15
FIRST_BOOT = f"""\
mkdir -p /run/systemd/system
cat > /usr/local/bin/systemctl <<'END'
#!/bin/sh
[ "$*" = "--no-block poweroff" ] && touch {POWER_OFF_ASKED}
END
chmod 755 /usr/local/bin/systemctl
printf 'cpu  10 0 10 1000 0 0 0 0 0 0\\n' > /run/stat
printf '259 0 nvme0n1 5 0 16 9 3 0 8 1 0 1 1\\n' > /run/diskstats
mount --bind /run/stat /proc/stat
mount --bind /run/diskstats /proc/diskstats
mkdir -p /home/USER/.gpuctl-node/queue/gpu-0
touch /home/USER/.gpuctl-node/queue/gpu-0/entry.json
chown -R USER: /home/USER/.gpuctl-node
grep -q '"idle_s": 600.0' /etc/gpuctl-idle.json
sed -i 's/"idle_s": 600.0/"idle_s": {IDLE_S}, "round_s": 2/' /etc/gpuctl-idle.json
PYTHON -I /usr/local/lib/gpuctl/idle_watch.py /etc/gpuctl-idle.json >/var/log/idle.log 2>&1 &
"""
"""The first boot of a machine whose minutes are seconds: it runs the watch, with an entry of a queue as use, and the
CPUs and disks of a machine that does nothing else.
"""


@contextmanager
def account(kind: str, folder: Path) -> Iterator[CloudGpuctl]:
    """gpuctl with an account whose machines run the watch."""
    path = folder / "profiles.json"
    first_boot = FIRST_BOOT.replace("USER", "ubuntu").replace("PYTHON", "/usr/bin/python3")
    path.write_text(json.dumps([{"first_boot": first_boot}]))
    project = folder / "project"
    project.mkdir()
    with start_fake(KINDS[kind].fake, folder, options=("--vms", str(path))) as cloud:
        yield CloudGpuctl(home=folder / "home", cwd=project, cloud=cloud, kind=KINDS[kind])


def up(gpuctl: CloudGpuctl, count: int):
    words = (
        "--shape",
        gpuctl.kind.shape,
        "--ssh-cidr",
        "127.0.0.1/32",
        "--driver",
        "none",
        "--yes",
        "--json",
    )
    return gpuctl.ok("up", *words, "--count", str(count), "--idle", "10m")


def wait_until(condition: Callable[[], bool], limit_s: float = 120, pause_s: float = 0.5) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause_s)


def test_unused_cluster_ends_as_one_in_the_clouds_record(tmp_path: Path) -> None:
    with account("aws", tmp_path) as gpuctl:
        made = up(gpuctl, 2)
        assert {end["guard"]: (end["armed"], end["ends_bill"]) for end in made.json["ends"]} == {
            "idle": (True, True)
        }
        leave = ("--", "rm", ".gpuctl-node/queue/gpu-0/entry.json")
        gpuctl.ok("exec", "--rank", "1", *leave)
        time.sleep(2 * IDLE_S)
        assert len(gpuctl.cloud.live_instances()) == 2, "machine 1 ends although machine 0 is in use"
        status = gpuctl.ok("status", "--json").json
        assert status["idle"]["after_s"] == 600
        assert status["idle"]["signals"]["queue"] is True
        assert status["idle"]["signals"]["gpu"] is None
        assert status["expires_at"] is None
        gpuctl.script("my.py", "print('hello')")
        refused = gpuctl("train", "--python", "/usr/bin/python3", "my.py")
        kept = [
            gpuctl.ok("exec", "--rank", rank, "--", "cat", ".gpuctl-node/idle-keep.json").out for rank in "01"
        ]
        assert all("until_s" in text for text in kept), refused.err
        keep = gpuctl.ok("keep", "1h", "--json").json
        assert keep["kept_until"] == keep["ends_at"]
        gpuctl.ok("exec", "--rank", "0", *leave)
        time.sleep(2 * IDLE_S)
        assert len(gpuctl.cloud.live_instances()) == 2, "kept"
        assert "gpuctl keep puts the end off" in gpuctl.ok("status").out
        gpuctl.ok("keep", "1s")
        wait_until(lambda: not gpuctl.cloud.live_instances())
        assert gpuctl.cloud.calls("TerminateInstances") == [], "they ended themselves"
        gpuctl.ok("down", "--yes")


def test_reap_ends_unused_machines_of_oci_and_none_that_it_cannot_ask(tmp_path: Path) -> None:
    with account("oci", tmp_path) as gpuctl:
        made = up(gpuctl, 1)
        assert {end["guard"]: (end["armed"], end["ends_bill"]) for end in made.json["ends"]} == {
            "idle": (True, False)
        }
        assert "gpuctl reap --idle --yes --provider oci" in made.err
        assert (
            "warning: Without use, only `gpuctl reap --idle` ends these machines and their bill" in made.err
        )
        document = gpuctl.ok("reap", "--idle", "--yes", "--json").json
        assert (document["removed"], document["not_asked"]) == ([], []), "in use"
        login = gpuctl.start("exec", "--", "sleep", "30")
        wait_until(lambda: gpuctl.ok("status", "--json").json["idle"]["signals"]["login"] is True, 25)
        login.communicate(timeout=60)
        gpuctl.ok("exec", "--", "rm", ".gpuctl-node/queue/gpu-0/entry.json")
        key = gpuctl.home / "clusters/default/keys/id_ed25519"
        away = key.rename(tmp_path / "key")
        blind = gpuctl("reap", "--idle", "--yes", "--json")
        assert (blind.status, blind.json["removed"], len(blind.json["not_asked"])) == (4, [], 1)
        away.rename(key)
        ends_at = gpuctl.ok("status", "--json").json["idle"]["ends_at"]
        assert ends_at is not None
        wait_until(
            lambda: bool(gpuctl.ok("reap", "--idle", "--yes", "--json").json["removed"]), pause_s=IDLE_S
        )
        assert gpuctl.cloud.live_instances() == []
