"""Test the library: its names, its arguments, and its events and questions, without printing."""

import io
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from pkgutil import iter_modules
from threading import Event, Thread
from typing import Any, Self

import click
import pytest
from support import a_machine, an_inventory, begin_run

import gpuctl
from gpuctl.command_line import cli
from gpuctl.command_results.upkeep import CleanItem
from gpuctl.commands import advise as advise_command
from gpuctl.commands import bench as bench_command
from gpuctl.commands import train as train_command
from gpuctl.commands import up as up_command
from gpuctl.global_options import Options
from gpuctl.library.keywords import AdviseOptions, BenchOptions, TrainOptions, UpOptions
from gpuctl.library.options import (
    advise_request,
    bench_request,
    train_request,
    up_request,
)
from gpuctl.library.silent_output import SilentOutput, silent_app
from gpuctl.workflow.clusters.clean.clean import Survey, offer
from gpuctl.workflow.machines.fab import thread_output
from inventories.codec import plain
from inventories.disk.store import Store
from inventories.machine import Inventory

ROOT = Path(__file__).parents[2]
NAMES = """
up plan cluster clusters cost report results runs advise version
AdviceRow Cluster BenchResult ClusterStatus ClusterSummary CommandResult CostResult DownResult Leftover LogLine
MachineInfo Pulled Pushed Hang Result RunInfo UpPlan
GpuctlError Usage Failed Declined Attention Interrupted InventoryError InvalidInput NotFound Locked
ProvisionError BadCredentials NoCapacity Quota LeftBehind RemoteError PreflightFailed Unreachable
"""
GLOBAL_OPTIONS = {"cluster", "json", "yes", "verbose", "no_color", "help"}


def python(code: str, cwd: Path, *path: Path) -> subprocess.CompletedProcess[str]:
    before = f"import sys; sys.path += {[str(ROOT), *map(str, path)]!r}\n"
    return subprocess.run(
        [sys.executable, "-c", before + code], cwd=cwd, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))
    return Store(tmp_path / "home")


@pytest.fixture
def work(store: Store) -> Inventory:
    """Create a cluster of two unreachable machines."""
    machines = tuple(
        a_machine(
            name=f"work-{rank}",
            rank=rank,
            port=1 + rank,
            gpus=1,
            id=str(rank),
            transport="ssh" if rank == 0 else "elsewhere",
        )
        for rank in range(2)
    )
    inventory = an_inventory(cluster="work", machines=machines)
    store.cluster("work").save(inventory)
    return inventory


def test_public_names_are_these_and_importable() -> None:
    assert sorted(gpuctl.__all__) == sorted(NAMES.split())
    for name in gpuctl.__all__:
        assert getattr(gpuctl, name).__doc__, name
    assert set(gpuctl.__all__) <= set(dir(gpuctl))
    assert issubclass(gpuctl.Interrupted, KeyboardInterrupt)
    for name in ("Usage", "InventoryError", "ProvisionError", "RemoteError"):
        assert issubclass(getattr(gpuctl, name), gpuctl.GpuctlError)


def test_import_loads_nothing_else(tmp_path: Path) -> None:
    code = "before = set(sys.modules); import gpuctl; print(*sorted(set(sys.modules) - before))"
    assert python(code, tmp_path).stdout == "gpuctl\n"
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        gpuctl.nope  # noqa: B018


def test_no_module_of_the_package_has_a_public_name() -> None:
    assert {module.name for module in iter_modules(gpuctl.__path__)}.isdisjoint(gpuctl.__all__)


def test_library_uses_its_own_packages_beside_modules_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "remote.py").write_text("print('HOSTILE')")
    (tmp_path / "provision").mkdir()
    code = f"sys.path.insert(0, {str(tmp_path)!r}); import gpuctl; print(gpuctl.RemoteError.__module__)"
    assert python(code, tmp_path).stdout == "remote.errors\n"
    done = python(f"sys.path.insert(0, {str(tmp_path)!r}); import remote, gpuctl; gpuctl.up", tmp_path)
    assert f"ImportError: gpuctl has a package remote, and so has this program: {tmp_path}" in done.stderr


@pytest.mark.parametrize(
    ("command", "options", "rest"),
    [
        (up_command, UpOptions, {"dry_run": None}),
        (train_command, TrainOptions, {"words": None, "dry_run": None, "job_file": None}),
        (bench_command, BenchOptions, {"words": None, "plot": None, "job_file": None}),
        (advise_command, AdviseOptions, {"words": None, "everything": None}),
    ],
)
def test_library_has_every_option_of_the_command_line(
    command: Any, options: Any, rest: dict[str, str | None]
) -> None:
    names = {param.name for param in command.command.params if isinstance(param, click.Parameter)}
    existing = {rest.get(name, name) for name in names - GLOBAL_OPTIONS} - {None}
    only_here = {"project", "allow_large"} if options in (TrainOptions, BenchOptions) else set()
    assert existing | only_here == set(options.__annotations__)


def test_advice_is_what_json_prints(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    messages: list[str] = []
    args = ["--model", "gpt-124m"]
    result = gpuctl.advise(args, shapes=["A10"], counts=[1, 2], tokens="1B", progress=messages.append)
    words = ["--shape", "A10", "--count", "1,2", "--tokens", "1e9", "--no-check", "--json", "--", *args]
    assert cli.main(["advise", *words]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": [plain(row) for row in result]}
    assert isinstance(result[0], gpuctl.AdviceRow)
    assert result[0].fits
    assert messages[-2].startswith("note: no text is named")
    with pytest.raises(gpuctl.Usage, match="'many' is no number of tokens"):
        gpuctl.advise(args, batch_tokens="many")
    with pytest.raises(gpuctl.Usage, match="--provider gcp is not possible: give "):
        gpuctl.advise(args, provider="gcp")
    with pytest.raises(TypeError, match="args is a list"):
        gpuctl.advise("--model gpt-124m")


def test_up_options_make_the_spec_of_the_command_line() -> None:
    request = up_request(
        "mine",
        {"shape": "g5.xlarge", "count": 2, "ttl": "4h", "max_cost": 9, "spot": True, "public_ip": False},
    )
    spec = request.spec
    assert (spec.cluster, spec.shape, spec.count, spec.ttl_s, spec.max_cost_usd) == (
        "mine",
        "g5.xlarge",
        2,
        14400.0,
        9.0,
    )
    assert (spec.spot, spec.public_ip, spec.accept_terms, request.wait) == (True, False, False, True)
    assert up_request(None, {}).spec.cluster == "default"
    with pytest.raises(gpuctl.InvalidInput):
        up_request(None, {"count": 0})
    with pytest.raises(gpuctl.Usage, match="boot-timeout"):
        up_request(None, {"wait": False, "boot_timeout": "10m"})


def test_spec_file_names_the_cluster_unless_another_is_named(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("cluster: filed\nprovider: local\ncount: 3\n")
    assert up_request(None, {"file": file}).spec.cluster == "filed"
    spec = up_request("named", {"file": str(file), "count": 4}).spec
    assert (spec.cluster, spec.provider, spec.count) == ("named", "local", 4)


def test_train_and_bench_options_make_requests() -> None:
    request = train_request(
        ["my.py"], {"nnodes": "1:4", "nproc_per_node": 2, "pip": ["einops"], "wheels": ".", "env": {"A": "b"}}
    )
    assert (request.min_nodes, request.nnodes, request.nproc_per_node) == (1, 4, 2)
    assert (request.pip, request.wheels, request.env) == (("einops",), Path(), {"A": "b"})
    assert train_request([], {"nnodes": 2}).nnodes == 2
    with pytest.raises(gpuctl.Usage, match="nproc-per-node 0"):
        train_request([], {"nproc_per_node": 0})
    assert [layout.name for layout in bench_request([], {"layouts": ["1x1", "2x4"]}).layouts] == [
        "1x1",
        "2x4",
    ]
    with pytest.raises(gpuctl.Usage, match="repeats"):
        bench_request([], {"repeats": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "mpi"}, "--mode mpi is not possible: give torchrun or ray."),
        ({"max_restarts": -1}, "--max-restarts -1"),
        ({"on_hang": "wait"}, "--on-hang wait is not possible: give report, stop, restart."),
        ({"on_hang": "stop", "detach": True}, "--on-hang stop needs gpuctl to stay"),
        ({"on_hang": "stop", "hang_after": "off"}, "--on-hang stop needs the watch"),
        ({"on_hang": "restart"}, "--on-hang restart counts as one of --max-restarts"),
        ({"gpu_below_for": "1h"}, "--for is the time of --end-if-gpu-below: give"),
        ({"end_if_gpu_below": "10%", "device": "cpu"}, "needs GPUs, and the run uses none"),
        ({"end_if_gpu_below": "0"}, "--end-if-gpu-below 0 is not possible: give a use of the GPUs above 0 %"),
        ({"end_if_gpu_below": "x%"}, "--end-if-gpu-below x% is not possible"),
        ({"env": {"1A": "b"}}, "no valid name"),
        ({"wheels": "nowhere"}, "--wheels: there is no folder nowhere."),
        ({"requirements": "nowhere"}, "--requirements: there is no file nowhere."),
        ({"project": "nowhere"}, "--project: there is no folder nowhere."),
        ({"nnodes": "4:1"}, "MIN must be at least 1"),
    ],
)
def test_train_refuses_options_that_can_not_be(options: Any, message: str) -> None:
    with pytest.raises(gpuctl.Usage, match=message):
        train_request([], options)


def test_options_that_are_not_there_are_refused_as_python_does() -> None:
    mistyped = {up_request: "max_costs", advise_request: "shape"}
    for function in (up_request, train_request, bench_request, advise_request):
        options: Any = {mistyped.get(function, "pyton"): "x"}
        with pytest.raises(TypeError, match=r"keyword argument '(max_costs|pyton|shape)'; did you mean"):
            function([], options)


def test_train_refuses_words_that_are_no_options_of_the_built_in_job(work: Inventory) -> None:
    cluster = gpuctl.cluster("work")
    with pytest.raises(gpuctl.Usage, match="first argument"):
        cluster.train(args=["my.py"])
    with pytest.raises(gpuctl.Usage, match="leave out one"):
        cluster.train("my.py", module="my")


def test_lines_go_to_progress_and_logger_and_nowhere_else(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "gpuctl")
    messages: list[str] = []
    output = SilentOutput(Options(), progress=messages.append)
    output.say("one\x1b[2J", "bold")
    output.error("two")
    output.detail("three")
    output.text("a result")
    output.table("four", aside=True)
    output.table("a table")
    assert messages == ["one", "two", "four"]
    assert [(record.name, record.levelname) for record in caplog.records] == [
        ("gpuctl", "INFO"),
        ("gpuctl", "WARNING"),
        ("gpuctl", "DEBUG"),
        ("gpuctl", "INFO"),
    ]
    assert capfd.readouterr() == ("", "")


def test_nothing_is_printed_where_no_logging_is_set_up(tmp_path: Path) -> None:
    code = "from gpuctl.library.silent_output import silent_app; silent_app('c').output.error('wrong')"
    done = python(code, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_only_the_caller_says_yes_to_what_costs_money() -> None:
    requests: list[str] = []

    def no(question: str) -> bool:
        requests.append(question)
        return False

    assert SilentOutput(Options()).confirm("Remove it?")
    with pytest.raises(gpuctl.Usage, match=r"Create it \(\$4\)\? Nobody was asked: pass confirm=True"):
        SilentOutput(Options()).confirm("Create it ($4)?", paid=True)
    assert SilentOutput(Options(), confirm=True).confirm("Create it?", paid=True)
    assert not SilentOutput(Options(), confirm=False).confirm("Create it?", paid=True)
    assert not SilentOutput(Options(), confirm=no).confirm("Create it?", paid=True)
    assert requests == ["Create it?"]
    assert silent_app("c", confirm=True).options.yes
    assert not silent_app("c", confirm=no).options.yes


def test_functions_tell_what_is_there(store: Store) -> None:
    assert (gpuctl.clusters(), gpuctl.runs()) == ((), ())
    with pytest.raises(gpuctl.NotFound, match="no cluster default") as raised:
        gpuctl.cluster()
    assert raised.value.exit_status == 2
    with pytest.raises(gpuctl.NotFound, match="no cluster default"):
        gpuctl.results()
    with pytest.raises(gpuctl.NotFound):
        gpuctl.results("20260101")


def test_status_and_clusters_are_what_json_prints(
    work: Inventory, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = gpuctl.cluster("work")
    assert (cluster.name, [machine.name for machine in cluster.machines]) == ("work", ["work-0", "work-1"])
    status, (summary,) = cluster.status(), gpuctl.clusters()
    for words, result in ((["status", "--cluster", "work"], status), (["clusters"], summary)):
        assert cli.main([*words, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        printed = printed["clusters"][0] if words == ["clusters"] else printed
        known = plain(result)
        assert isinstance(known, dict)
        assert list(printed) == list(known)
        assert printed | {"age_s": 0} == known | {"age_s": 0}
    assert isinstance(status.machines[0].port, int)


def test_commands_on_a_node_that_is_gone_tell_why(work: Inventory) -> None:
    cluster = gpuctl.cluster("work")
    (done,) = cluster.exec("true", rank=0)
    assert (done.exit_code, done.stdout) == (None, "")
    assert done.error
    assert "work-0" in done.error
    with pytest.raises(gpuctl.NotFound, match="rank or name '7'"):
        cluster.exec("true", rank=7)
    with pytest.raises(gpuctl.Unreachable), cluster.connection(0) as box:
        box.run("true")
    with pytest.raises(gpuctl.Usage, match="Fabric needs SSH"):
        cluster.group()


def test_exception_keeps_what_could_not_be_removed_as_a_note(store: Store, work: Inventory) -> None:
    journal = store.cluster("work").journal
    journal.append("up", provider="nobody", create=[])
    store.cluster("work").inventory_path.write_text("all: [")
    with pytest.raises(ValueError, match="mine") as raised, gpuctl.cluster("work", keep=False):
        raise ValueError("mine")
    assert ["nobody" in note for note in raised.value.__notes__] == [True]
    with pytest.raises(gpuctl.ProvisionError, match="nobody"), gpuctl.cluster("work", keep=False):
        pass
    with gpuctl.cluster("work"):
        pass


def test_plan_is_what_a_dry_run_prints(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    result = gpuctl.plan("mine", provider="local", count=2)
    assert [(machine.name, machine.rank) for machine in result.create] == [("mine-0", 0), ("mine-1", 1)]
    assert (result.hourly_usd, result.account_asked, result.keep) == (0.0, True, ())
    words = ["up", "--cluster", "mine", "--provider", "local", "--count", "2", "--dry-run", "--json"]
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out) == plain(result)
    assert gpuctl.clusters() == ()


def test_up_that_fails_notes_that_machines_may_be_there(work: Inventory) -> None:
    with pytest.raises(gpuctl.ProvisionError) as raised:
        gpuctl.up("work", provider="local")
    assert raised.value.__notes__ == [
        "gpuctl: machines may be there: gpuctl.cluster('work').down() removes them"
    ]
    with pytest.raises(gpuctl.GpuctlError) as raised:
        gpuctl.up("other", provider="nobody")
    assert not hasattr(raised.value, "__notes__")


def test_down_names_what_it_could_not_remove(store: Store, work: Inventory) -> None:
    journal = store.cluster("work").journal
    journal.append("up", provider="hosts", create=[])
    journal.append("firewall", node="work-0", host="127.0.0.1", port=1, owner="work")
    with pytest.raises(gpuctl.Attention, match="firewall work-0: it may still let") as raised:
        gpuctl.cluster("work").down()
    done = raised.value.result
    assert isinstance(done, gpuctl.DownResult)
    assert [left.kind for left in done.leftovers] == ["firewall"]
    assert raised.value.exit_status == 4
    with gpuctl.cluster("work", keep=False) as cluster:
        assert cluster.down(forget=True).leftovers == ()
    assert gpuctl.clusters() == ()


def test_files_on_machines_are_never_removed_without_a_question(store: Store) -> None:
    requests, report = [], []
    app = silent_app("c", confirm=lambda question: not requests.append(question), progress=report.append)
    doomed = CleanItem(
        where="own-0", cluster="c", kind="env", name="x", bytes=2_000_000, removes=True, why=""
    )
    offer(app, [doomed], Survey(hosts={}, leftovers={}))
    assert requests == []
    assert ["would have removed 2.0 MB" in line for line in report] == [True]


def test_progress_that_raises_fails_no_work(caplog: pytest.LogCaptureFixture) -> None:
    def fails(line: str) -> None:
        raise (SystemExit if line == "leave" else ValueError)(line)

    output = SilentOutput(Options(), progress=fails)
    output.say("one")
    output.say("leave")
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ValueError, SystemExit]

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SilentOutput(Options(), progress=interrupted).say("one")


def test_yes_to_the_price_sends_no_large_folder(
    work: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remote.files.tree.MAX_BYTES", 10)
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "data.bin").write_bytes(b"x" * 11)
    cluster = gpuctl.cluster("work", confirm=True)
    with pytest.raises(gpuctl.RemoteError, match="allow_large=True"):
        cluster.push(tmp_path / "sets", rank=0)
    with pytest.raises(gpuctl.RemoteError, match="no TCP connection"):
        cluster.push(tmp_path / "sets", rank=0, allow_large=True)
    (tmp_path / "sets" / "my.py").touch()
    with pytest.raises(gpuctl.RemoteError, match="allow_large=True"):
        cluster.train("my.py", project=tmp_path / "sets")
    with pytest.raises(gpuctl.RemoteError, match="no TCP connection"):
        cluster.train("my.py", project=tmp_path / "sets", allow_large=True)


def test_text_in_place_of_a_list_is_refused(work: Inventory) -> None:
    cluster: Any = gpuctl.cluster("work")
    calls: dict[str, Callable[[], object]] = {
        "pip": lambda: cluster.train("my.py", pip="numpy"),
        "args": lambda: cluster.train("my.py", "--lr 0.1"),
        "layouts": lambda: cluster.bench(layouts="1x1"),
        "forecast": lambda: cluster.bench(forecast="1x1"),
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=f"{name} is a list, such as {name}=\\['"):
            call()
    with pytest.raises(TypeError, match="args"):
        cluster.bench("--epochs 1")


def test_command_of_one_word_is_no_shell_line(
    work: Inventory, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []

    class Node:
        def run(self, line: str, *_: object) -> object:
            lines.append(line)
            raise gpuctl.RemoteError("gone")

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("remote.sessions.connect.connect", lambda *_, **__: Node())
    cluster = gpuctl.cluster("work")
    for command in (["a b; rm x"], ["echo", "a b"], "echo a; echo b"):
        cluster.exec(command, rank=0)
    assert lines == ["'a b; rm x'", "echo 'a b'", "echo a; echo b"]
    empty: tuple[Any, ...] = ([], "", " ")
    for command in empty:
        with pytest.raises(gpuctl.Usage, match="no command"):
            cluster.exec(command)


def test_leaving_the_block_stops_no_run_of_others(store: Store, work: Inventory) -> None:
    store.cluster("work").journal.append("up", provider="hosts", create=[])
    run = begin_run(store)
    with (
        pytest.raises(gpuctl.Attention, match=rf"{run} may still be active.* work-0, work-1\..*\.down\(\)"),
        gpuctl.cluster("work", keep=False),
    ):
        pass
    with pytest.raises(ValueError, match="mine") as raised, gpuctl.cluster("work", keep=False):
        raise ValueError("mine")
    assert [run in note for note in raised.value.__notes__] == [True]
    assert not store.run(run).stopped_path.exists()
    assert [cluster.name for cluster in store.clusters()] == ["work"]
    with pytest.raises(gpuctl.Attention, match="Not all of the cluster"):  # the stop is requested, and fails
        gpuctl.cluster("work").down()
    assert store.run(run).stopped_path.exists()


def test_leaving_the_block_stops_runs_that_it_started(store: Store, work: Inventory) -> None:
    store.cluster("work").journal.append("up", provider="hosts", create=[])
    app = silent_app("work")
    run = begin_run(store)
    app.started_runs.add(run)
    with suppress(gpuctl.Attention), gpuctl.Cluster(app):
        pass
    assert store.run(run).stopped_path.exists()


def test_ctrl_c_at_the_end_of_the_block_tells_of_the_machines(
    store: Store, work: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuctl.workflow.clusters.down.down", interrupted)
    for error in (None, ValueError("mine")):
        with pytest.raises(KeyboardInterrupt) as raised, gpuctl.cluster("work", keep=False):
            if error is not None:
                raise error
        assert raised.value.__notes__ == [
            "gpuctl: machines may be there: gpuctl.cluster('work').down() continues"
        ]


def test_connection_that_can_not_be_closed_does_not_keep_the_machines(store: Store, work: Inventory) -> None:
    store.cluster("work").journal.append("up", provider="hosts", create=[])
    with gpuctl.cluster("work", keep=False) as cluster:
        connection = cluster.connection(0)

        def fails() -> None:
            raise OSError("gone")

        connection.close = fails  # type: ignore[method-assign]
    assert store.clusters() == []


def test_runs_of_another_cluster_are_refused(store: Store, work: Inventory) -> None:
    run = begin_run(store, "other")
    cluster = gpuctl.cluster("work")
    for call in (cluster.logs, cluster.stop):
        with pytest.raises(gpuctl.Usage, match=rf"Run {run} is one of the cluster other, not of work"):
            call(run[:-2])
    assert not store.run(run).stopped_path.exists()


def test_interrupted_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(gpuctl.Interrupted("over", result=(1, 2))))
    assert (str(error), error.result) == ("over", (1, 2))


def test_whatever_ends_the_thread_of_a_log_ends_the_iterator(
    store: Store, work: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaves(*_: object, **__: object) -> None:
        raise SystemExit("left")

    begin_run(store)
    monkeypatch.setattr("gpuctl.library.log_following.read_logs", leaves)
    with pytest.raises(SystemExit, match="left"):
        next(gpuctl.cluster("work").logs())


def test_store_that_can_not_be_read_does_not_replace_what_failed(
    work: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: Store) -> None:
        raise gpuctl.InventoryError("unreadable")

    monkeypatch.setattr(Store, "clusters", unreadable)
    with pytest.raises(gpuctl.ProvisionError):
        gpuctl.up("work", provider="local")


def test_output_of_a_thread_leaves_that_of_others_alone(capsys: pytest.CaptureFixture[str]) -> None:
    usual, out, err, other = sys.stdout, io.StringIO(), io.StringIO(), io.StringIO()

    def elsewhere() -> None:
        print("thread")

    def another() -> None:
        with thread_output(other, other):
            print("another")

    with thread_output(out, err):
        print("mine")
        print("wrong", file=sys.stderr)
        for target in (elsewhere, another):
            thread = Thread(target=target)
            thread.start()
            thread.join()
        with thread_output(other, other):
            print("inner")
        print("mine again")
    assert sys.stdout is usual
    assert (out.getvalue(), err.getvalue()) == ("mine\nmine again\n", "wrong\n")
    assert other.getvalue() == "another\ninner\n"
    assert capsys.readouterr() == ("thread\n", "")


def test_output_of_threads_that_leave_out_of_order_ends_where_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    usual, first, second = sys.stdout, io.StringIO(), io.StringIO()
    begun, ended = Event(), Event()

    def longer() -> None:
        with thread_output(second, second):
            begun.set()
            ended.wait(10)
            print("second")

    thread = Thread(target=longer)
    with thread_output(first, first):
        thread.start()
        begun.wait(10)
    print("usual")
    ended.set()
    thread.join()
    assert sys.stdout is usual
    print("after")
    assert (first.getvalue(), second.getvalue()) == ("", "second\n")
    assert capsys.readouterr().out == "usual\nafter\n"


def test_setup_task_on_this_computer_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "fabfile.py").write_text(
        "from fabric import task\nprint('loaded')\n\n"
        "@task\ndef prepare(c):\n    print('prepared')\n    c.run('echo out; echo err >&2', in_stream=False)\n"
    )
    code = """
from pathlib import Path
from gpuctl.library.silent_output import silent_app
from gpuctl.workflow.machines.fab import Work, load_fabfile
app = silent_app("work")
fabfile = load_fabfile(app, Path.cwd())
work = Work(app=app, fabfile=fabfile, out=app.output.stderr, show=None)
((step,), _) = fabfile.parse(["prepare"])
with work.printing():
    done = work.run_local(step)
print(done.status, *sorted(app.output.stderr.getvalue().split()))
"""
    done = python(code, tmp_path)
    assert (done.stdout, done.stderr) == ("done err loaded out prepared\n", "")
