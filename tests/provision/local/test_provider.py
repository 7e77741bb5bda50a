"""The life of local hosts: made, kept, replaced, ended; and nothing left, whatever happened."""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import psutil
import pytest
from support import alive, wait_for

from inventories.disk.store import Store
from inventories.errors import CorruptFile, InvalidInput
from inventories.specs.spec import Spec
from provision.errors import CreateFailed
from provision.local.provider import LocalProvider
from provision.provider import Leftover

pytestmark = pytest.mark.slow

LIMIT_S = 20


@pytest.fixture
def cluster(make_cluster, tmp_path):
    return make_cluster(tmp_path / "home")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid), what="the end by SIGKILL")


def spec(count: int | None = None, **more) -> Spec:
    return Spec(provider="local", count=count, **more)


def started_on(ssh, command: str) -> int:
    """Start a process on a host and return its id, which `command` prints."""
    return int(ssh.run(command).stdout)


class TestPlan:
    def test_plan_lists_exact_requests_and_creates_nothing(self, cluster):
        plan = cluster.provider.plan(spec(2), None)
        local = Path(os.path.realpath(cluster.folder.path)) / "local"
        assert [(request.operation, dict(request.body)) for request in plan.requests] == [
            ("MakeClientKey", {"path": str(cluster.folder.key_path)}),
            *(
                (
                    "StartSshServer",
                    {
                        "name": f"default-{rank}",
                        "address": "127.0.0.1",
                        "home": str(local / f"default-{rank}" / "home"),
                        "removes_old_home": False,
                    },
                )
                for rank in (0, 1)
            ),
        ]
        assert [(resource.action, resource.kind, resource.name) for resource in plan.resources] == [
            ("create", "host", "default-0"),
            ("create", "host", "default-1"),
        ]
        assert plan.changes
        assert plan.free
        assert plan.hourly_usd == 0
        assert not cluster.folder.path.exists()

    def test_plan_defaults_to_one_host(self, cluster):
        assert [machine.name for machine in cluster.provider.plan(spec(), None).create] == ["default-0"]

    @pytest.mark.parametrize("shape", ["VM.GPU.A10.2", "loca1"])
    def test_plan_refuses_a_cloud_or_unknown_shape(self, cluster, shape):
        with pytest.raises(InvalidInput, match=f"no shape '{shape}'"):
            cluster.provider.plan(spec(shape=shape), None)

    def test_plan_refuses_more_than_64_hosts(self, cluster):
        with pytest.raises(InvalidInput, match="64 at most"):
            cluster.provider.plan(spec(1_000_000), None)


class TestUp:
    def test_create_returns_machines_and_writes_private_files(self, cluster):
        first, second = cluster.up(2)
        assert [(m.name, m.rank, m.state, m.shape) for m in (first, second)] == [
            ("default-0", 0, "running", "local"),
            ("default-1", 1, "running", "local"),
        ]
        assert first.host == first.private_ip == "127.0.0.1"
        assert first.port != second.port
        assert first.id != second.id
        assert first.host_key != second.host_key
        assert first.gpus == 0
        secret = [cluster.folder.key_path, *cluster.folder.path.glob("local/*/host_key")]
        assert len(secret) == 3
        for path in secret:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for folder in cluster.folder.path.glob("local/*"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    def test_create_journals_each_host_id_before_it_runs(self, cluster):
        first, second = cluster.up(2)
        events = [(entry["event"], entry["id"]) for entry in cluster.folder.journal.read()]
        assert events == [
            ("local host starts", first.id),
            ("local host starts", second.id),
            ("local host runs", first.id),
            ("local host runs", second.id),
        ]

    def test_second_up_changes_nothing(self, cluster):
        machines = cluster.up(2)
        plan = cluster.provider.plan(spec(), cluster.folder.load())
        assert not plan.changes
        assert plan.requests == ()
        assert [resource.action for resource in plan.resources] == ["use", "use"]
        assert plan.keep == machines
        assert cluster.up() == machines

    def test_up_with_a_higher_count_adds_hosts(self, cluster):
        before = cluster.up(1)
        after = cluster.up(3)
        assert after[:1] == before
        assert [machine.rank for machine in after] == [0, 1, 2]

    def test_up_with_a_lower_count_ends_the_hosts_above_it(self, cluster):
        before = cluster.up(3)
        plan = cluster.provider.plan(spec(1), cluster.folder.load())
        assert (plan.keep, set(plan.end)) == (before[:1], {host.id for host in before[1:]})
        assert cluster.up(1) == before[:1]
        assert [cluster.provider.refresh(host).state for host in before] == ["running", "gone", "gone"]

    def test_plan_without_inventory_keeps_the_hosts(self, cluster):
        cluster.up(2)
        cluster.folder.inventory_path.unlink()
        assert not cluster.provider.plan(spec(), None).changes

    def test_create_and_destroy_handle_16_hosts(self, cluster):
        assert len(cluster.up(16)) == 16
        output: list[str] = []
        assert cluster.provider.destroy(output.append) == ()
        assert output[:2] == ["ending all that runs there …", "default-0: removing its folder …"]
        assert len(output) == 17
        assert cluster.processes() == []

    def test_create_uses_the_python_of_the_spec(self, cluster):
        (machine,) = cluster.up(1, python="/usr/bin/python3")
        assert machine.python == "/usr/bin/python3"

    def test_up_with_another_python_keeps_the_hosts(self, cluster):
        (first,) = cluster.up(1)
        (other,) = cluster.up(python="/usr/bin/python3")
        assert (other.id, other.port) == (first.id, first.port)
        assert other.python == "/usr/bin/python3"
        assert [machine.python for machine in cluster.up(2)] == ["/usr/bin/python3"] * 2

    def test_hosts_outlive_their_creator(self, cluster, script, ssh_to, tmp_path):
        program = script(f"""
from pathlib import Path
from inventories.specs.spec import Spec
from inventories.disk.store import Store
from provision.local.provider import LocalProvider
folder = Store(Path({str(tmp_path / "home")!r})).cluster("default")
provider = LocalProvider(folder)
provider.create(provider.plan(Spec(count=2), None), folder.journal)
""")
        done = subprocess.run(program, capture_output=True, timeout=LIMIT_S, start_new_session=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        machines = cluster.provider.find()
        assert [machine.state for machine in machines] == ["running", "running"]
        assert ssh_to(machines[1]).run("echo here").stdout == b"here\n"


class TestDown:
    def test_destroy_ends_all_processes_started_through_the_hosts(self, cluster, ssh_to):
        ssh = ssh_to(cluster.up(2)[0])
        quiet = "</dev/null >/dev/null 2>&1 & echo $!"
        detached = started_on(ssh, f"setsid sleep 300 {quiet}")
        nameless = started_on(ssh, f"env -i setsid sleep 300 {quiet}")
        stubborn = started_on(ssh, f"trap '' TERM; setsid sleep 300 {quiet}")
        with subprocess.Popen(ssh.command("sleep 300"), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            wait_for(lambda: len(cluster.processes()) >= 6, what="the start of the command")
            assert cluster.provider.destroy() == ()
        for pid in (detached, nameless, stubborn):
            assert not alive(pid)
        assert cluster.processes() == []
        assert not (cluster.folder.path / "local").exists()
        assert cluster.provider.find() == ()

    @pytest.mark.parametrize("state", ["running", "killed", "torn record", "no files"])
    @pytest.mark.parametrize("elsewhere", [False, True], ids=["in /tmp", "in $TMPDIR"])
    def test_destroy_leaves_no_temporary_files(
        self, cluster, ssh_to, monkeypatch, tmp_path, elsewhere, state
    ):
        monkeypatch.setenv("TMPDIR", str(tmp_path) if elsewhere else "/tmp")
        first, second = cluster.up(2)
        folders = [
            Path(ssh_to(item).run("echo $TMPDIR; mktemp -d").stdout.decode().split()[0])
            for item in (first, second)
        ]
        assert len({*folders}) == 2
        for folder in folders:
            assert len(str(folder)) <= 18, "sockets in there need short paths"
            assert (folder.resolve().parent == tmp_path.resolve()) is elsewhere
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert len(list(folder.iterdir())) == 1
        before = [*folders, *(folder.resolve() for folder in folders)]
        record = cluster.folder.path / "local" / "default-1" / "host.json"
        if state == "killed":
            kill(cluster.server_pid(second))
        elif state == "torn record":
            record.write_bytes(record.read_bytes()[:30])
        elif state == "no files":
            shutil.rmtree(cluster.folder.path)
        assert cluster.provider.destroy() == ()
        assert not any(os.path.lexists(folder) for folder in before)

    def test_destroy_keeps_the_target_of_a_symlinked_temporary_folder(
        self, cluster, ssh_to, monkeypatch, tmp_path
    ):
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        (tmp_path / "mine").mkdir()
        (machine,) = cluster.up(1)
        folder = Path(ssh_to(machine).run("echo $TMPDIR").stdout.decode().strip())
        real = folder.readlink()
        real.rmdir()
        real.symlink_to(tmp_path / "mine")
        assert cluster.provider.destroy() == ()
        assert (tmp_path / "mine").exists()
        assert not os.path.lexists(folder)

    @pytest.mark.parametrize("folder", ["missing", "a file"])
    def test_create_ignores_a_tmpdir_that_is_no_folder(self, cluster, ssh_to, monkeypatch, tmp_path, folder):
        (tmp_path / "a file").touch()
        monkeypatch.setenv("TMPDIR", str(tmp_path / folder))
        (machine,) = cluster.up(1)
        assert ssh_to(machine).run('test -d "$TMPDIR" && test ! -L "$TMPDIR"').returncode == 0

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_destroy_keeps_a_temporary_folder_of_another_user(self, cluster, ssh_to, tmp_path):
        (machine,) = cluster.up(1)
        (tmp_path / "theirs").mkdir()
        folder = Path(ssh_to(machine).run("echo $TMPDIR").stdout.decode().strip())
        folder.rmdir()
        folder.symlink_to(tmp_path / "theirs")
        os.lchown(folder, 12345, 12345)
        assert cluster.provider.destroy() == ()
        assert (tmp_path / "theirs").exists()
        folder.unlink()

    def test_destroy_keeps_other_clusters_and_processes(self, cluster, make_cluster, ssh_to, tmp_path):
        neighbour = make_cluster(tmp_path / "home", "neighbour")
        (other,) = neighbour.up(1)
        (mine,) = cluster.up(1)
        line = "exec setsid sleep 4321 </dev/null >/dev/null 2>&1"
        theirs = started_on(ssh_to(other), f"sh -c '{line}' & echo $!")
        started_on(ssh_to(mine), f"sh -c '{line}' & echo $!")
        with subprocess.Popen(["sleep", "4321"]) as unrelated:
            assert cluster.provider.destroy() == ()
            assert cluster.processes() == []
            assert unrelated.poll() is None
            unrelated.kill()
        assert alive(theirs)
        assert neighbour.provider.refresh(other).state == "running"
        assert ssh_to(other).run("true").returncode == 0

    def test_destroy_keeps_a_host_started_from_within_a_host(
        self, cluster, make_cluster, script, ssh_to, tmp_path
    ):
        inner = make_cluster(tmp_path / "inner")
        program = script(f"""
from pathlib import Path
from inventories.specs.spec import Spec
from inventories.disk.store import Store
from provision.local.provider import LocalProvider
folder = Store(Path({str(tmp_path / "inner")!r})).cluster("default")
provider = LocalProvider(folder)
provider.create(provider.plan(Spec(count=1), None), folder.journal)
""")
        assert ssh_to(cluster.up(1)[0]).run(*program).returncode == 0
        assert cluster.provider.destroy() == ()
        (machine,) = inner.provider.find()
        assert machine.state == "running"
        assert ssh_to(machine).run("true").returncode == 0

    def test_destroy_is_idempotent(self, cluster):
        assert cluster.provider.destroy() == ()
        cluster.up(1)
        assert cluster.provider.destroy() == ()
        assert cluster.provider.destroy() == ()

    def test_destroy_ends_hosts_whose_files_were_deleted(self, cluster, ssh_to):
        ssh = ssh_to(cluster.up(1)[0])
        detached = started_on(ssh, "setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $!")
        shutil.rmtree(cluster.folder.path)
        assert cluster.provider.destroy() == ()
        assert not alive(detached)
        assert cluster.processes() == []

    def test_destroy_ends_hosts_whose_folder_was_moved(self, cluster, tmp_path):
        (machine,) = cluster.up(1)
        pid = cluster.server_pid(machine)
        (tmp_path / "home").rename(tmp_path / "moved")
        assert LocalProvider(Store(tmp_path / "moved").cluster("default")).destroy() == ()
        assert not alive(pid)

    def test_torn_record_stops_find_and_plan_but_not_destroy(self, cluster):
        cluster.up(1)
        record = cluster.folder.path / "local" / "default-0" / "host.json"
        record.write_bytes(record.read_bytes()[:30])
        for refused in (cluster.provider.find, lambda: cluster.provider.plan(spec(), None)):
            with pytest.raises(CorruptFile, match="gpuctl down"):
                refused()
        assert cluster.provider.destroy() == ()
        assert cluster.processes() == []

    def test_destroy_removes_unwritable_folders(self, cluster, ssh_to):
        ssh = ssh_to(cluster.up(1)[0])
        ssh.run("mkdir -p a/b && touch a/b/c && chmod 0 a/b && chmod 500 a", check=True)
        assert cluster.provider.destroy() == ()
        assert not (cluster.folder.path / "local").exists()

    def test_destroy_reports_a_folder_it_cannot_remove(self, cluster, monkeypatch):
        cluster.up(1)
        local = cluster.folder.path / "local"

        remove = shutil.rmtree

        def refuse(path: Path) -> None:
            if not Path(path).is_relative_to(os.path.realpath(local)):
                return remove(path)
            raise OSError(30, "Read-only file system", str(path))

        monkeypatch.setattr(shutil, "rmtree", refuse)  # a read-only disk, which no test can make without root
        (left,) = cluster.provider.destroy()
        assert (left.kind, left.id) == ("folder", os.path.realpath(local / "default-0"))
        assert isinstance(left, Leftover)
        assert "Read-only" in left.reason

    def test_destroy_retries_temporary_files_it_could_not_remove(
        self, cluster, ssh_to, monkeypatch, tmp_path
    ):
        (machine,) = cluster.up(1)
        folder = Path(ssh_to(machine).run("echo $TMPDIR").stdout.decode().strip())
        remove = shutil.rmtree

        def refuse(path: Path) -> None:
            raise OSError(16, "Device or resource busy", str(path))

        monkeypatch.setattr(shutil, "rmtree", refuse)  # something is mounted in there, which only root can do
        (left,) = cluster.provider.destroy()
        assert left.id == str(folder)
        monkeypatch.setattr(shutil, "rmtree", remove)
        assert cluster.provider.destroy() == ()
        assert not folder.exists()


class TestDeadHosts:
    def test_killed_host_is_reported_gone_and_replaced(self, cluster, ssh_to):
        first, second = cluster.up(2)
        (old_home,) = (cluster.folder.path / "local").glob("default-1/home")
        (old_home / "file").touch()
        detached = started_on(ssh_to(second), "setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $!")
        kill(cluster.server_pid(second))

        assert cluster.provider.refresh(first).state == "running"
        assert cluster.provider.refresh(second).state == "gone"
        assert [machine.state for machine in cluster.provider.find()] == ["running", "gone"]
        plan = cluster.provider.plan(spec(), cluster.folder.load())
        assert [(machine.name, machine.replaces) for machine in plan.create] == [("default-1", second.id)]
        assert plan.keep == (first,)
        assert plan.end == ()
        end, start = plan.requests
        assert (end.operation, dict(end.body)) == ("EndProcess", {"pid": detached, "host": second.id})
        assert (start.body["name"], start.body["removes_old_home"]) == ("default-1", True)

        saved, fresh = cluster.up()
        assert saved == first
        assert fresh.name == "default-1"
        assert fresh.id != second.id
        assert fresh.host_key != second.host_key
        assert not alive(detached)
        assert not (old_home / "file").exists()
        assert ssh_to(fresh).run("true").returncode == 0
        assert cluster.provider.refresh(second).state == "gone"

    def test_refresh_ignores_another_process_with_the_recorded_pid(self, cluster, ssh_to):
        first, second = cluster.up(2)
        record = cluster.folder.path / "local" / "default-1" / "host.json"
        impostors = [
            os.getpid(),
            cluster.server_pid(first),
            started_on(ssh_to(second), "setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $!"),
        ]
        kill(cluster.server_pid(second))
        for pid in impostors:
            record.write_text(json.dumps(json.loads(record.read_text()) | {"pid": pid}))
            assert cluster.provider.refresh(second).state == "gone"

    def test_deleted_host_folder_counts_as_gone_and_is_replaced(self, cluster):
        _, second = cluster.up(2)
        pid = cluster.server_pid(second)
        shutil.rmtree(cluster.folder.path / "local" / "default-1")
        assert cluster.provider.refresh(second).state == "gone"
        _, fresh = cluster.up()
        assert fresh.id != second.id
        assert not alive(pid)


class TestInterrupted:
    """The command that creates hosts is killed in the middle."""

    @pytest.fixture
    def interrupt(self, cluster, script, wrapped_python, tmp_path):
        """Kill `up --count 3` while the last of its servers starts slowly; return the state left behind."""
        python = wrapped_python('case "$3" in *default-2/*) exec sleep 300;; esac')
        program = script(f"""
from pathlib import Path
from inventories.specs.spec import Spec
from inventories.disk.store import Store
from provision.local.provider import LocalProvider
folder = Store(Path({str(tmp_path / "home")!r})).cluster("default")
provider = LocalProvider(folder, python={python!r}, ready_timeout_s=60)
provider.create(provider.plan(Spec(count=3), None), folder.journal)
""")

        def interrupted() -> list[int]:
            before = cluster.processes()
            with subprocess.Popen(program) as creator:
                try:
                    wait_for(lambda: listening(cluster) == 2, what="the start of the servers")
                    assert creator.poll() is None
                finally:
                    creator.kill()
            return [pid for pid in cluster.processes() if pid not in before]

        return interrupted

    @pytest.fixture
    def stray(self, interrupt):
        return interrupt()

    def test_up_ends_stray_processes_of_a_killed_create(self, cluster, stray, ssh_to):
        plan = cluster.provider.plan(spec(2), None)
        assert len(plan.create) == 2
        assert len(plan.end) == 1
        assert sum(request.operation == "EndProcess" for request in plan.requests) == len(stray)
        machines = cluster.up(2)
        assert not any(alive(pid) for pid in stray)
        assert sorted(cluster.processes()) == sorted(cluster.server_pid(machine) for machine in machines)
        assert all(ssh_to(machine).run("true").returncode == 0 for machine in machines)

    @pytest.mark.usefixtures("stray")
    def test_find_does_not_list_stray_processes(self, cluster):
        assert cluster.provider.find() == ()
        cluster.up(1)
        assert cluster.processes() == [cluster.server_pid(cluster.provider.find()[0])]

    def test_up_ends_strays_of_a_killed_scale_up(self, cluster, interrupt):
        (machine,) = cluster.up(1)
        stray = interrupt()
        plan = cluster.provider.plan(spec(), cluster.folder.load())
        assert plan.create == ()
        assert len(plan.end) == 2
        assert plan.changes
        assert cluster.up() == (machine,)
        assert not any(alive(pid) for pid in stray)
        assert cluster.processes() == [cluster.server_pid(machine)]
        assert not cluster.provider.plan(spec(), cluster.folder.load()).changes

    def test_destroy_ends_stray_processes(self, cluster, stray):
        assert cluster.provider.destroy() == ()
        assert not any(alive(pid) for pid in stray)
        assert cluster.processes() == []


def listening(cluster) -> int:
    count = 0
    for pid in cluster.processes():
        with contextlib.suppress(psutil.Error):
            count += any(entry.status == "LISTEN" for entry in psutil.Process(pid).net_connections("inet"))
    return count


class TestGang:
    """Test that either all machines start or no machine is left."""

    def test_create_undoes_all_when_one_host_exits(self, make_cluster, wrapped_python, tmp_path):
        python = wrapped_python('case "$3" in *default-1/*) echo "no room for me" >&2; exit 3;; esac')
        cluster = make_cluster(tmp_path / "home", python=python)
        with pytest.raises(CreateFailed, match=r"(?s)default-1 ended before .*no room for me"):
            cluster.up(3)
        self.assert_nothing_left(cluster)

    def test_create_undoes_all_when_one_host_times_out(self, make_cluster, wrapped_python, tmp_path):
        python = wrapped_python('case "$3" in *default-0/*) exec sleep 300;; esac')
        cluster = make_cluster(tmp_path / "home", python=python, ready_timeout_s=1)
        with pytest.raises(CreateFailed, match="default-0 did not accept connections within 1 s"):
            cluster.up(2)
        self.assert_nothing_left(cluster)

    def test_create_undoes_all_when_one_host_prints_garbage(self, make_cluster, wrapped_python, tmp_path):
        python = wrapped_python('case "$3" in *default-0/*) echo "hello"; exec sleep 300;; esac')
        cluster = make_cluster(tmp_path / "home", python=python)
        with pytest.raises(CreateFailed, match="hello"):
            cluster.up(2)
        self.assert_nothing_left(cluster)

    def test_create_undoes_all_when_one_folder_cannot_be_made(self, cluster):
        (cluster.folder.path / "local").mkdir(parents=True)
        (cluster.folder.path / "local" / "default-1").write_text("a file is in the way")
        with pytest.raises(CreateFailed, match="default-1"):
            cluster.up(2)
        self.assert_nothing_left(cluster)

    def test_failed_scale_up_keeps_the_existing_host(self, cluster, wrapped_python, ssh_to):
        (machine,) = cluster.up(1)
        python = wrapped_python("exit 1")
        failing = LocalProvider(cluster.folder, python=python)
        with pytest.raises(CreateFailed):
            failing.create(failing.plan(spec(3), cluster.folder.load()), cluster.folder.journal)
        assert cluster.provider.find() == (machine,)
        assert cluster.processes() == [cluster.server_pid(machine)]
        assert ssh_to(machine).run("true").returncode == 0

    def test_interrupted_create_undoes_all_hosts(self, script, wrapped_python, cluster, tmp_path):
        python = wrapped_python('case "$3" in *default-1/*) exec sleep 300;; esac')
        program = script(f"""
from pathlib import Path
from inventories.specs.spec import Spec
from inventories.disk.store import Store
from provision.local.provider import LocalProvider
folder = Store(Path({str(tmp_path / "home")!r})).cluster("default")
provider = LocalProvider(folder, python={python!r}, ready_timeout_s=60)
try:
    provider.create(provider.plan(Spec(count=2), None), folder.journal)
except KeyboardInterrupt:
    sys.exit(130)
""")
        with subprocess.Popen(program) as creator:
            wait_for(lambda: listening(cluster) == 1, what="the start of the server")
            creator.send_signal(signal.SIGINT)
            assert creator.wait(LIMIT_S) == 130
        self.assert_nothing_left(cluster)

    def assert_nothing_left(self, cluster) -> None:
        assert cluster.processes() == []
        assert cluster.provider.find() == ()
        assert [path for path in (cluster.folder.path / "local").glob("*") if path.is_dir()] == []


class TestGpus:
    @pytest.fixture(autouse=True)
    def five_gpus(self, tmp_path, monkeypatch):
        tool = tmp_path / "bin" / "nvidia-smi"
        tool.parent.mkdir()
        tool.write_text('#!/bin/sh\nfor i in 0 1 2 3 4; do echo "GPU $i: NVIDIA A10 (UUID: GPU-$i)"; done\n')
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def visible(self, ssh_to, machine) -> str:
        return ssh_to(machine).run('printf %s "$CUDA_VISIBLE_DEVICES"').stdout.decode()

    def test_plan_shares_gpus_equally_among_hosts(self, cluster, ssh_to):
        plan = cluster.provider.plan(spec(2), None)
        last = plan.requests[-1]
        assert (last.operation, dict(last.body)) == ("ShareGpus", {"hosts": 2, "gpus_each": 2, "gpus": 5})
        machines = cluster.up(2)
        assert [machine.gpus for machine in machines] == [2, 2]
        assert [self.visible(ssh_to, machine) for machine in machines] == ["0,1", "2,3"]

    def test_up_with_more_hosts_redistributes_the_gpus(self, cluster, ssh_to):
        (machine,) = cluster.up(1)
        assert self.visible(ssh_to, machine) == "0,1,2,3,4"
        machines = cluster.up(5)
        assert [machine.gpus for machine in machines] == [1] * 5
        assert [self.visible(ssh_to, machine) for machine in machines] == ["0", "1", "2", "3", "4"]
        assert cluster.provider.refresh(machine).gpus == 1
        machines = cluster.up(6)
        assert {self.visible(ssh_to, machine) for machine in machines} == {""}

    def test_create_shares_only_gpus_in_cuda_visible_devices(self, cluster, ssh_to, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, 3")
        machines = cluster.up(2)
        assert [self.visible(ssh_to, machine) for machine in machines] == ["1", "3"]
