"""Test the machines' scheduled power-off: `up` reads the timers and starts missing ones."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from clouds import KINDS, CloudGpuctl

from tests.fakes.client import start_fake
from tests.fakes.vms import lacking

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(lacking() is not None, reason=lacking() or ""),
    pytest.mark.skipif(shutil.which("sudo") is None, reason="machines start their timers with sudo"),
]

UP = ("up", "--shape", "VM.GPU.A10.2", "--ssh-cidr", "127.0.0.1/32", "--driver", "none", "--yes", "--json")
SYSTEMD = """\
mkdir -p /run/systemd/system
cat > /usr/local/bin/systemctl <<'END'
#!/bin/sh
unit=/run/end-timer
case "$1" in
show)
    if [ -e $unit ]; then printf 'LoadState=loaded\\nActiveState=%s\\n' "$(cat $unit)"
    else printf 'LoadState=not-found\\nActiveState=inactive\\n'; fi ;;
enable) [ -e $unit ] && [ "$3" = gpuctl-expire.timer ] && printf active > $unit ;;
is-active) [ "$(cat $unit 2>/dev/null)" = active ] ;;
esac
END
chmod 755 /usr/local/bin/systemctl
"""
"""The first boot of a machine whose systemd knows one timer, by a file with its state."""


@contextmanager
def account(folder: Path, *states: str) -> Iterator[CloudGpuctl]:
    """gpuctl with an account at OCI. `states`: of the timers of the machines by rank; empty for a missing timer."""
    profiles: list[dict[str, Any]] = [
        {
            "name": f"default-{rank}",
            "first_boot": SYSTEMD + (f"printf {state} > /run/end-timer\n" if state else ""),
        }
        for rank, state in enumerate(states)
    ]
    path = folder / "profiles.json"
    path.write_text(json.dumps(profiles))
    project = folder / "project"
    project.mkdir()
    with start_fake("oci", folder, options=("--vms", str(path))) as cloud:
        yield CloudGpuctl(home=folder / "home", cwd=project, cloud=cloud, kind=KINDS["oci"])


def power_off(gpuctl: CloudGpuctl) -> tuple[bool | None, str]:
    """State and problem of the machines' power-off in `status`."""
    ends = {end["guard"]: end for end in gpuctl.ok("status", "--json").json["ends"]}
    return ends["machine power-off"]["armed"], ends["machine power-off"]["problem"]


def test_up_starts_a_timer_that_stands_and_shows_all_as_armed(tmp_path: Path) -> None:
    with account(tmp_path, "active", "inactive") as gpuctl:
        up = gpuctl.ok(*UP, "--count", "2", "--ttl", "4h")
        assert {end["guard"]: end["armed"] for end in up.json["ends"]} == {
            "cloud schedule": True,
            "machine power-off": True,
        }
        assert power_off(gpuctl) == (True, "")
        gpuctl.ok("down", "--yes")


def test_up_tells_of_a_machine_without_a_timer(tmp_path: Path) -> None:
    with account(tmp_path, "active", "") as gpuctl:
        up = gpuctl.ok(*UP, "--count", "2", "--ttl", "4h")
        assert "machine power-off: the timer does not run on default-1" in up.err
        assert power_off(gpuctl) == (False, "the timer does not run on default-1")
        gpuctl.ok("down", "--yes")


def test_machines_without_time_limit_are_asked_for_no_timer(tmp_path: Path) -> None:
    with account(tmp_path, "") as gpuctl:
        up = gpuctl.ok(*UP, "--count", "1")
        assert "ends" not in up.json
        assert "timer" not in up.err
        gpuctl.ok("down", "--yes")
