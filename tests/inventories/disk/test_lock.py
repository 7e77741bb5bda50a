"""The lock, between real processes."""

import fcntl
import json
import os
import threading
import time

import pytest

from inventories.disk import lock
from inventories.disk.store import Store
from inventories.errors import Locked

HOLD = """
import sys
from pathlib import Path
from inventories.disk.store import Store
with Store(Path(sys.argv[1])).cluster("demo").lock(sys.argv[2], wait_s=20):
    print("held", flush=True)
    for line in sys.stdin:
        if line == "remove\\n":
            Store(Path(sys.argv[1])).cluster("demo").remove()
            print("removed", flush=True)
        else:
            break
"""

HOLD_WITH_CHILDREN = """
import os, subprocess, sys, time
from pathlib import Path
from inventories.disk.store import Store
with Store(Path(sys.argv[1])).cluster("demo").lock("parent"):
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    children = [subprocess.Popen(["sleep", "60"], close_fds=close, **quiet).pid for close in (True, False)]
    forked = os.fork()
    if forked == 0:
        for handle in (0, 1, 2):
            os.close(handle)
        time.sleep(60)
        os._exit(0)
    print(*children, forked, flush=True)
    sys.stdin.read()
"""

FORK_LEAVES_THE_BODY = """
import os, sys
from pathlib import Path
from inventories.disk.store import Store
with Store(Path(sys.argv[1])).cluster("demo").lock("parent"):
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        print("held", flush=True)
        sys.stdin.read()
"""

CONTEND = """
import os, sys
from pathlib import Path
from inventories.disk.store import Store
home = Path(sys.argv[1])
for turn in range(15):
    cluster = Store(home).cluster("demo")
    with cluster.lock("contend", wait_s=60):
        handle = os.open(home / "alone", os.O_CREAT | os.O_EXCL)
        os.close(handle)
        cluster.journal.append("turn")
        count = int((home / "count").read_text())
        (home / "count").write_text(str(count + 1))
        (home / "alone").unlink()
        if turn % 3 == 0:
            cluster.remove()
"""


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def cluster(home):
    return Store(home).cluster("demo")


def hold(start_python, home, command="gpuctl up"):
    child = start_python(HOLD, home, command)
    assert child.stdout.readline() == "held\n"
    return child


def test_lock_names_its_holder_after_waiting(cluster, home, start_python):
    child = hold(start_python, home)
    messages = []
    start = time.monotonic()
    with pytest.raises(Locked) as caught, cluster.lock("gpuctl down", wait_s=0.3, on_wait=messages.append):
        pytest.fail("two hold the lock")
    assert 0.3 <= time.monotonic() - start < 30
    assert str(caught.value) == (
        f"Cluster 'demo' is in use by `gpuctl up` (process {child.pid}). "
        "Wait until that is done, or end that process, and try again."
    )
    assert messages == [
        f"Waiting up to 0.3 s for `gpuctl up` (process {child.pid}), which works on cluster 'demo'."
    ]


def test_lock_with_zero_wait_fails_at_once(cluster, home, start_python):
    hold(start_python, home)
    with pytest.raises(Locked), cluster.lock("gpuctl down", wait_s=0):
        pytest.fail("two hold the lock")


def test_lock_passes_to_waiter_when_holder_ends(cluster, home, start_python):
    child = hold(start_python, home)
    with cluster.lock("me", wait_s=20, on_wait=lambda _: child.communicate("done\n", timeout=20)):
        signed = json.loads((cluster.path / "lock").read_text())
    assert signed == {"pid": os.getpid(), "command": "me"}
    assert child.returncode == 0
    assert (cluster.path / "lock").read_text() == "", (
        "whoever waits next would be told of a holder that is gone"
    )


def test_lock_is_free_after_holder_is_killed(cluster, home, start_python):
    child = hold(start_python, home)
    child.kill()
    child.wait(timeout=20)
    with cluster.lock("me", wait_s=0):
        pass


def test_lock_is_not_inherited_by_holders_children(cluster, home, start_python):
    child = start_python(HOLD_WITH_CHILDREN, home)
    line = child.stdout.readline()
    pids = [int(word) for word in line.split()]
    assert len(pids) == 3, child.communicate(timeout=20)
    try:
        child.kill()
        child.wait(timeout=20)
        for pid in pids:
            os.kill(pid, 0)
        with cluster.lock("me", wait_s=5):  # the forked child may not have run yet
            pass
    finally:
        for pid in pids:
            os.kill(pid, 9)


def test_lock_stays_held_when_forked_child_leaves_body(cluster, home, start_python):
    child = start_python(FORK_LEAVES_THE_BODY, home)
    assert child.stdout.readline() == "held\n", child.communicate(timeout=20)
    with pytest.raises(Locked, match=rf"`parent` \(process {child.pid}\)"), cluster.lock("me", wait_s=0.1):
        pytest.fail("two hold the lock")


def test_lock_survives_removal_of_cluster_folder(cluster, home, start_python):
    first = hold(start_python, home, "first")
    second = start_python(HOLD, home, "second")
    time.sleep(0.3)  # so that the second has the old file open; without it the test is only weaker
    first.stdin.write("remove\n")
    first.stdin.flush()
    assert first.stdout.readline() == "removed\n"
    assert second.stdout.readline() == "held\n"
    with (
        pytest.raises(Locked, match=rf"`second` \(process {second.pid}\)"),
        cluster.lock("third", wait_s=0.1),
    ):
        pytest.fail("two hold the lock")
    first.communicate("done\n", timeout=20)
    with pytest.raises(Locked, match="`second`"), cluster.lock("third", wait_s=0.1):
        pytest.fail("the first unlocked what the second holds")


def test_lock_retries_if_lock_file_is_removed_while_opened(cluster, monkeypatch):
    removals = iter([True, True])

    def remove_then_lock(handle, operation):
        if operation & fcntl.LOCK_EX and next(removals, False):
            cluster.remove()
        return flock(handle, operation)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", remove_then_lock)
    with cluster.lock("me", wait_s=5):
        assert next(removals, None) is None
        assert json.loads((cluster.path / "lock").read_text())["command"] == "me"


def test_lock_excludes_concurrent_processes(home, start_python):
    home.mkdir()
    (home / "count").write_text("0")
    children = [start_python(CONTEND, home) for _ in range(4)]
    for child in children:
        _, err = child.communicate(timeout=120)
        assert child.returncode == 0, err
    assert (home / "count").read_text() == "60"
    assert not list((home / "clusters").glob(".removed-*"))


def test_lock_excludes_threads_of_one_process(cluster):
    entered = threading.Event()

    def other():
        with cluster.lock("thread", wait_s=20):
            entered.set()

    with cluster.lock("me"):
        thread = threading.Thread(target=other)
        thread.start()
        assert not entered.wait(0.2)
    thread.join(timeout=20)
    assert entered.is_set()


def test_lock_held_by_another_thread_ends_no_process(cluster):
    output = []

    def other():
        with pytest.raises(Locked) as refused, cluster.lock("thread", wait_s=0.1):
            pass
        output.append(str(refused.value))

    with cluster.lock("me"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(timeout=20)
    assert output == [
        "Cluster 'demo' is in use by `me` in another thread of this program. Wait until that is done and try again."
    ]


def test_lock_is_released_when_body_raises(cluster):
    with pytest.raises(KeyError), cluster.lock("me"):
        raise KeyError("x")
    with cluster.lock("me", wait_s=0):
        pass


def test_lock_tolerates_incomplete_holder_record(tmp_path, start_python, home):
    child = hold(start_python, home)
    for half in ("", '{"pid": 1', "[]", '"x"'):
        (home / "clusters" / "demo" / "lock").write_text(half)
        messages = []
        path = home / "clusters" / "demo" / "lock"
        attempt = lock.hold(path, subject="the thing", command="me", wait_s=0.1, on_wait=messages.append)
        with pytest.raises(Locked, match=r"The thing is in use by another process\. Wait"), attempt:
            pytest.fail("two hold the lock")
        assert messages == []
    child.communicate("done\n", timeout=20)
