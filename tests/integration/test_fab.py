"""`gpuctl fab`: a fabfile's tasks on real hosts, and Fabric's connections from many threads at once."""

import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support import Gpuctl

from inventories.disk.store import Store
from remote.transport import known_hosts
from remote.transport.fabric_connection import PinnedConnection, PinnedGroup

pytestmark = pytest.mark.slow

FABFILE = '''
from fabric import task

@task
def prepare(c):
    c.run("echo prepared in $(basename $PWD)")

@task(pre=[prepare])
def who(c, greeting="hello", times=1):
    """Say who is there."""
    for _ in range(times):
        print(greeting, "from", c.machine.name)
    c.run("echo out; echo err >&2; printf 'no end'")
    c.local("echo and here")
    c.put("note.txt", "note.copy")
    return c.run("cat note.copy", hide=True).stdout

@task
def bad(c):
    """Fail on one."""
    c.run("echo tried")
    if c.machine.rank == 1:
        c.run("exit 7")

@task
def nap(c):
    c.run("echo sleeping; sleep 300")
'''


@pytest.fixture
def project(cluster: Gpuctl) -> Gpuctl:
    cluster.script("fabfile.py", FABFILE)
    cluster.script("note.txt", "a note")
    # A file of the user that gpuctl must never read.
    cluster.script("remote.py", "raise SystemExit('not ours')")
    return cluster


@pytest.mark.whole
def test_fab_runs_tasks_with_arguments_on_all_nodes_or_one(project: Gpuctl) -> None:
    done = project.ok("fab", "who", "--greeting", "good day", "--times", "2")
    assert done.out.splitlines()[0] == f"prepared in {project.cwd.name}", "once, on this computer"
    output = [
        f"default-{rank}: {text}"
        for rank in (0, 1)
        for text in ("good day from default-{}", "out", "no endand here")
    ]
    for line in (line.format(line[8]) for line in output):
        assert line in done.out.splitlines()
    assert done.out.count("good day") == 4
    assert "default-0: err" in done.err
    assert "who: done on 2 of 2 nodes" in done.err
    alone = project.ok("fab", "--rank", "1", "--json", "who")
    prepared, report = alone.json["tasks"]
    assert (prepared["task"], prepared["nodes"][0]["node"]) == ("prepare", None)
    assert report["nodes"] == [
        {
            "node": "default-1", "rank": 1, "status": "done", "error": None, "value": "a note",
            "stdout": "hello from default-1\nout\nno endand here\n", "stderr": "err\n",
        }
    ]  # fmt: skip
    assert "prepared" in alone.err, "stdout has the document alone"


def test_fab_tells_each_nodes_outcome_and_refuses_what_is_not_there(project: Gpuctl) -> None:
    failed = project("fab", "bad", "who")
    assert failed.status == 1
    assert "default-1: bad failed: `exit 7` exited with status 7" in failed.err
    assert "bad: done on 1 of 2 nodes; failed on default-1" in failed.err
    assert "who: not run, as bad failed" in failed.err
    assert failed.out.count("tried") == 2
    documents = project("fab", "--json", "bad", "who").json["tasks"]
    assert [[node["status"] for node in task["nodes"]] for task in documents] == [["done", "failed"], [], []]
    assert documents[2]["not_run"] == "bad failed"
    assert project.ok("fab").out.splitlines() == [
        "bad      Fail on one.", "nap", "prepare", "who      Say who is there.",
    ]  # fmt: skip
    for words, output in (
        (("fab", "wo"), "did you mean 'who'?"),
        (("fab", "who", "--gretting", "x"), "did you mean '--greeting'?"),
        (("fab", "--rank", "7", "who"), "no machine of rank or name '7'"),
    ):
        refused = project(*words)
        assert (refused.status, output in refused.err) == (2, True), refused.err


def test_fab_ends_at_an_interrupt(project: Gpuctl) -> None:
    process = project.start("fab", "--rank", "0", "nap")
    assert process.stdout.readline() == "sleeping\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, "Interrupted" in err) == (130, True)


def test_64_connections_open_at_once_from_threads(cluster: Gpuctl) -> None:
    folder = Store(cluster.home).cluster("default")
    (machine, *_) = folder.load().machines
    assert known_hosts.host_pattern(machine.host, machine.port) in folder.known_hosts_path.read_text()
    many = [replace(machine, name=f"box-{number}", rank=number) for number in range(64)]
    for _ in range(3):
        with PinnedGroup(many, folder, at_once=64) as group:
            done = group.run("echo $SSH_CONNECTION", hide=True, in_stream=False)
            assert len({result.stdout for result in done.values()}) == 64
    box = PinnedConnection(machine, folder)
    with box, ThreadPoolExecutor(8) as threads:
        output = threads.map(
            lambda word: box.run(f"echo {word}", hide=True, in_stream=False).stdout, range(8)
        )
        assert list(output) == [f"{word}\n" for word in range(8)]
