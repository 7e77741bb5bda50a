"""Test the way of a cluster to another computer, against fake clouds with real SSH servers behind."""

import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from clouds import COUNT, KINDS, CloudGpuctl, Clouds, Kind, cloud_gpuctl
from support import an_inventory

from inventories.disk.store import Store
from tests.fakes.webhooks import receiver

pytestmark = pytest.mark.slow
PASSPHRASE = {"GPUCTL_PASSPHRASE": "correct horse battery"}


@pytest.fixture(params=KINDS.values(), ids=KINDS, scope="module")
def first(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudGpuctl]:
    """Yield gpuctl on the computer that made the cluster; the tests of the file share it."""
    kind: Kind = request.param
    with cloud_gpuctl(kind, tmp_path_factory.mktemp(kind.provider), hosts=True) as gpuctl:
        spec = {
            "shape": kind.shape,
            "count": COUNT,
            "ssh_cidr": "127.0.0.1/32",
            "python": sys.executable,
            "network": {"ssh_port": gpuctl.cloud.settings()["ssh_port"]},
            "driver": "none",
        }
        gpuctl.script("cloud.yaml", yaml.safe_dump(spec))
        gpuctl.ok("up", "-f", "cloud.yaml", "--yes")
        yield gpuctl
        gpuctl.ok("down", "--yes")
        assert gpuctl.cloud.owned() == []


@pytest.fixture
def second(first: CloudGpuctl, tmp_path: Path) -> CloudGpuctl:
    """gpuctl with the same account, on a computer without files of ours."""
    project = tmp_path / "project"
    project.mkdir()
    return replace(first, home=tmp_path / "home", cwd=project)


def test_imported_key_gives_access_at_once(first: CloudGpuctl, second: CloudGpuctl) -> None:
    file = second.cwd / "my.key"
    first.ok("key", "export", str(file), env=PASSPHRASE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert b"PRIVATE KEY" not in file.read_bytes()
    wrong = second("key", "import", str(file), env={"GPUCTL_PASSPHRASE": "wrong wrong"})
    assert (wrong.status, "passphrase is wrong" in wrong.err) == (2, True)
    assert not (second.home / "clusters" / "default" / "inventory.yaml").exists()

    assert second.ok("key", "import", str(file), "--json", env=PASSPHRASE).json["cluster"] == "default"
    was, now = first.ok("status", "--json").json, second.ok("status", "--json").json
    assert now["machines"] == was["machines"]
    assert now["notices"] is not None  # the machines are asked for notices of the first computer's runs
    assert "nothing changed" in second.ok("up", "-f", str(first.cwd / "cloud.yaml"), "--yes").err
    assert second.ok("exec", "--rank", "1", "--", "echo", "reached").out.strip().endswith("reached")
    inventory = (second.home / "clusters" / "default" / "inventory.yaml").read_text()
    assert str(first.home) not in inventory
    again = second("key", "import", str(file), env=PASSPHRASE)
    assert (again.status, "known here already" in again.err) == (2, True)


def test_adopted_cluster_works_without_files_of_first_computer(
    first: CloudGpuctl, second: CloudGpuctl
) -> None:
    was = first.ok("status", "--json").json
    adopted = second.ok("adopt", "--yes", "--json").json
    assert adopted["machines"] == [
        machine | {"gpus": ours["gpus"]}
        for machine, ours in zip(was["machines"], adopted["machines"], strict=True)
    ]
    folders = [home / "clusters" / "default" for home in (first.home, second.home)]
    assert (folders[0] / "known_hosts").read_bytes() == (folders[1] / "known_hosts").read_bytes()
    keys = [(folder / "keys" / "id_ed25519").read_bytes() for folder in folders]
    assert keys[0] != keys[1]
    for gpuctl in (first, second):
        assert gpuctl.ok("exec", "--", "echo", "reached").out.count("reached") == COUNT
    assert "nothing changed" in second.ok("up", "-f", str(first.cwd / "cloud.yaml"), "--yes").err
    assert len(first.cloud.live_instances()) == COUNT


def test_adopt_names_missing_part_of_machine_and_leaves_cluster_removable(
    first: CloudGpuctl, second: CloudGpuctl
) -> None:
    if first.kind.provider == "oci":
        first.cloud.fault(
            operation="CreateInstanceAgentCommand", times=0, status=404, code="NotAuthorizedOrNotFound"
        )
        missing = "manage instance-agent-command-family"
    else:
        first.cloud.fault(operation="SendSSHPublicKey", times=0, status=400, code="AuthException")
        missing = "ec2-instance-connect:SendSSHPublicKey"
    refused = second("adopt", "--yes", "--json")
    first.cloud.clear_faults()
    assert refused.status == 4, refused.err
    assert missing in refused.err
    assert [machine["state"] for machine in refused.json["machines"]] == ["running"] * COUNT
    assert "Remove 2 machines" in second("down").err
    assert second.ok("adopt", "--yes", "--json").json["machines"][0]["gpus"] == 0


def test_adopt_refuses_what_it_can_mistake(first: CloudGpuctl, second: CloudGpuctl) -> None:
    unknown = second("adopt", "--cluster", "other", "--yes")
    assert (unknown.status, "no cluster other" in unknown.err) == (2, True)
    assert second("adopt").status == 2, "it asks, and there is no terminal"
    assert list((second.home / "clusters").glob("*/*")) == []
    stranger = {"LOGNAME": "somebody-else"}
    refused = second("adopt", "--yes", env=stranger)
    assert (refused.status, "is another user's" in refused.err) == (2, True)
    found = second.ok("reap", "--dry-run", "--json").json["clusters"]
    folder = Store(second.home).cluster("default")
    folder.save(an_inventory(provider="local"))
    taken = second("adopt", "--yes")
    assert taken.status == 2
    assert "Another cluster is called default here, of provider local" in taken.err
    assert folder.load().provider == "local"
    folder.remove()
    assert second.ok("adopt", found[0]["id"], "--yes", "--json", env=stranger).json["cluster"] == "default"


def test_adopt_brings_runs_of_first_computer(first: CloudGpuctl, second: CloudGpuctl) -> None:
    first.script("hello.py", "import os\nprint('hello from', os.environ['RANK'])\n")
    with receiver() as server:
        server.answers += [404]
        notify = ("--notify", f"{server.url}/s3cret")
        ran = first.ok("train", "--device", "cpu", "--json", *notify, "hello.py", timeout_s=170).json
    first.ok("train", "--device", "cpu", "--detach", "--json", "hello.py", timeout_s=170)

    second.ok("adopt", "--yes")
    (notice,) = second.ok("status", "--json").json["notices"]
    assert (notice["about"], notice["problem"]) == (ran["run"], "HTTP status 404")
    listed = second.ok("runs", "--json").json["runs"]
    assert ran["run"] in [run["run"] for run in listed]
    assert "hello from 1" in second.ok("logs", ran["run"], "--rank", "1").out
    brought = second.ok("results", ran["run"], "--json").json["runs"][0]
    same = ("run", "status", "exit_code", "world_size", "script", "started_at")
    assert {key: brought[key] for key in same} == {key: ran[key] for key in same}

    begun = second.ok("train", "--device", "cpu", "--json", "--detach", "-m", "this", timeout_s=170).json[
        "run"
    ]
    assert begun not in [run["run"] for run in first.ok("runs", "--json").json["runs"]]
    first.ok("adopt", "--yes")
    assert begun in [run["run"] for run in first.ok("runs", "--json").json["runs"]]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_up_of_two_computers_at_once_ends_with_requested_machines(
    kind: Kind, clouds: Clouds, tmp_path: Path
) -> None:
    gpuctl = clouds.as_new(kind, tmp_path)
    gpuctl.ok(*gpuctl.up_words)
    second = replace(gpuctl, home=tmp_path / "second")
    assert second("adopt", "--yes").status == 4, "nobody answers at these addresses"
    words = [word if word != str(COUNT) else str(COUNT + 1) for word in gpuctl.up_words]
    both = [computer.fork(*words) for computer in (gpuctl, second)]
    ends = [process.communicate(timeout=120) for process in both]
    # The later of two launches of one rank is ended, and its command may fail.
    assert any(process.returncode == 0 for process in both), ends
    assert len(second.ok(*words).json["machines"]) == COUNT + 1
    assert len(gpuctl.cloud.live_instances()) == COUNT + 1
    assert gpuctl.ok(*words).json["machines"] == second.ok(*words).json["machines"]
    second.ok("down", "--yes")
    assert gpuctl.cloud.owned() == []
    assert gpuctl.ok("down", "--yes", "--json").json["leftovers"] == []


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_smaller_count_ends_no_machine_that_is_unknown_or_silent(
    kind: Kind, clouds: Clouds, tmp_path: Path
) -> None:
    first = clouds.as_new(kind, tmp_path)
    first.ok(*first.up_words)
    second = replace(first, home=tmp_path / "second")
    assert second("adopt", "--yes").status == 4, "nobody answers at these addresses"
    first.ok(*(word if word != str(COUNT) else str(COUNT + 1) for word in first.up_words))

    unknown = second(*first.up_words)
    assert unknown.status == 2
    assert f"default-{COUNT} is not in the files here" in unknown.err
    silent = first(*first.up_words)
    assert silent.status == 2
    assert f"default-{COUNT} does not answer, and a run may be active there" in silent.err
    (first.home / "clusters" / "default" / "inventory.yaml").unlink()
    lost = first(*first.up_words)
    assert lost.status == 2
    assert f"default-{COUNT} is not in the files here" in lost.err
    assert len(first.cloud.live_instances()) == COUNT + 1
    first.ok("down", "--yes")
