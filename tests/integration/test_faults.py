"""Test faults in the middle of a run: each ends in a sentence, a status, and no process left behind."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from support import Gpuctl, interrupt, processes_with, wait_for

pytestmark = pytest.mark.slow

STEPS = """
import json, os, sys, time
rank = int(os.environ["RANK"])
print("rank", rank, "begins", flush=True)
for step in range(600):
    with open(os.environ["GPUCTL_METRICS"], "a") as file:
        file.write(json.dumps({"step": step + 1}) + "\\n")
    time.sleep(0.1)
"""


def running_train(gpuctl: Gpuctl, *words: str, text: str = STEPS) -> "tuple[subprocess.Popen[str], str]":
    """Start `gpuctl train` with a script of one minute; return once both ranks run, with the run's id."""
    gpuctl.script("steps.py", text)
    before = set((gpuctl.home / "runs").glob("*"))
    process = gpuctl.start("train", "--json", *words, "steps.py")

    def at_work() -> str | None:
        for folder in sorted(set((gpuctl.home / "runs").glob("*")) - before):
            logs = [folder / "logs" / f"rank-{rank}.log" for rank in (0, 1)]
            if all(log.exists() and "begins" in log.read_text() for log in logs):
                return folder.name
        return None

    return process, wait_for(at_work, what="both ranks at work", deadline_s=200)


def test_train_stops_all_ranks_and_shows_first_failed_rank(two_hosts: Gpuctl) -> None:
    text = (
        STEPS
        + "    if rank == 1 and step == 5:\n        print('the last words of rank 1')\n        sys.exit(3)\n"
    )
    two_hosts.script("fails.py", text)
    done = two_hosts("train", "fails.py")
    assert done.status == 1
    result = two_hosts.ok("results", "--json").json["runs"][0]
    assert result["status"] == "failed"
    assert result["exit_code"] == 3
    assert result["first_error"]["rank"] == 1
    assert result["first_error"]["node"] == "default-1"
    assert (result["reason"], result["first_error"]["reason"]) == ("exit_code", "exit_code")
    assert result["ranks"][1]["exit_code"] == 3
    assert result["ranks"][0]["exit_code"] not in (None, 0)
    shown = done.out
    assert "rank 1" in shown
    assert "default-1" in shown
    assert "the last words of rank 1" in shown
    assert not processes_with("fails.py", str(two_hosts.home))


def test_rank_that_lost_its_peer_fails_the_run_and_is_started_again(two_hosts: Gpuctl) -> None:
    """The other rank waits until gpuctl stops it: no stop was ordered."""
    text = (
        "import os, time\ntime.sleep(0.5)\nif os.environ['RANK'] == '1':\n    raise RuntimeError('Gloo "
        "connectFullMesh failed with [pair.cc:152] timed out connecting: No route to host')\ntime.sleep(60)\n"
    )
    two_hosts.script("loses.py", text)
    done = two_hosts("train", "--json", "--max-restarts", "1", "loses.py")
    assert done.status == 1, done.err
    result, error = done.json, done.json["first_error"]
    assert (result["status"], result["reason"], result["exit_code"]) == ("failed", "lost_peer", 1)
    assert (error["rank"], error["node"]) == (1, "default-1")
    assert "No route to host" in error["message"]
    assert "restart 1 of 1: " in done.err
    assert "another command" not in done.err
    assert len(two_hosts.ok("runs", "--json").json["runs"]) == 2


def test_train_reports_rank_killed_by_sigkill(two_hosts: Gpuctl) -> None:
    process, run = running_train(two_hosts)
    # The rank itself, not the watcher around it: the younger of the two processes that name the script.
    record = two_hosts.run_folder(run) / "ranks" / "rank-1.json"
    os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    result = json.loads(out)
    assert result["first_error"]["rank"] == 1
    assert "SIGKILL" in result["first_error"]["message"]
    assert result["reason"] == "signal"
    assert result["ranks"][1]["exit_code"] == -9
    assert not processes_with("steps.py", str(two_hosts.home))


def test_train_blames_hung_rank_not_the_one_that_timed_out(two_hosts: Gpuctl) -> None:
    """Uses the built-in job, stopped in the middle so that the other rank times out first."""
    words = ("--device", "cpu", "--model", "mlp", "--epochs", "1000", "--timeout-s", "10", "--no-save")
    process = two_hosts.start("train", "--json", "--", *words)

    def at_work() -> int | None:
        for run in sorted((two_hosts.home / "runs").glob("*")):
            metrics = [run / "metrics" / f"rank-{rank}.jsonl" for rank in (0, 1)]
            if all(file.exists() and '"step"' in file.read_text() for file in metrics):
                return int(json.loads((run / "ranks" / "rank-1.json").read_text())["pid"])
        return None

    os.kill(wait_for(at_work, what="both ranks at work"), signal.SIGSTOP)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    error = json.loads(out)["first_error"]
    assert (error["rank"], error["node"]) == (1, "default-1")
    assert (error["reason"], error["ranks"]) == ("hung", [1])
    assert error["message"].startswith("hung, or was far behind: rank 0 waited for it in vain (")
    assert "Rank 0 waited 10 s for another rank" in error["message"]
    assert not processes_with(str(two_hosts.home / "runs"))


def test_killed_rank_watcher_leaves_no_process(two_hosts: Gpuctl) -> None:
    process, _run = running_train(two_hosts)
    watchers = [
        pid
        for pid in processes_with("steps.py", str(two_hosts.home))
        if b"\0rank\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    # torchrun's command line holds the same words; the watcher is the process without them.
    watchers = [
        pid for pid in watchers if b"torch.distributed" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    rank = int(psutil.Process(watchers[-1]).environ()["RANK"])
    os.kill(watchers[-1], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    error = json.loads(out)["first_error"]
    assert (error["rank"], error["reason"]) == (rank, "unknown"), "nobody saw how it ended"
    assert not processes_with("steps.py", str(two_hosts.home))


def test_killed_train_command_leaves_run_to_be_followed(two_hosts: Gpuctl) -> None:
    two_hosts.script("brief.py", STEPS.replace("600", "40"))
    process = two_hosts.start("train", "brief.py")
    wait_for(
        lambda: len(processes_with("brief.py", str(two_hosts.home))) >= 6,
        what="both ranks at work",
        deadline_s=40,
    )
    process.kill()
    process.communicate()
    row = two_hosts.ok("runs", "--json").json["runs"][-1]
    assert row["status"] == "running"
    assert two_hosts.ok("results", "--json").json["runs"][0]["status"] == "running"
    followed = two_hosts.ok("logs", "-f")
    assert "rank 0 begins" in followed.out
    result = two_hosts.ok("results", "--json").json["runs"][0]
    assert result["status"] == "succeeded"
    assert result["seconds"]["total"] > 3


SAVES = """
import os, signal, sys, time
rank = os.environ["RANK"]
def save(why):
    time.sleep(1.5)
    open(f"saved-{rank}.ckpt", "w").write(why)
def on_sigterm(*_):
    save("SIGTERM")
    sys.exit(1)
signal.signal(signal.SIGTERM, on_sigterm)
print("rank", rank, "begins", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    save("SIGINT")
"""


def test_an_interrupt_is_sigint_and_stop_is_sigterm_and_ranks_save(two_hosts: Gpuctl) -> None:
    for number in ("SIGINT", "SIGTERM"):
        process, run = running_train(two_hosts, "--fresh", text=SAVES)
        if number == "SIGINT":
            interrupt(process)
        else:
            assert "ranks are given up to 30 s to save" in two_hosts.ok("stop").err
        out, err = process.communicate(timeout=60)
        assert process.returncode == (130 if number == "SIGINT" else 1), err
        result = json.loads(out)
        assert (result["status"], result["reason"]) == ("stopped", "stopped")
        assert {ending["signal"] for ending in result["endings"].values()} == {number}
        assert f"of {number}" in err
        saved = (two_hosts.run_folder(run) / "outputs").rglob("saved-*.ckpt")
        assert {path.name: path.read_text() for path in saved} == dict.fromkeys(
            ["saved-0.ckpt", "saved-1.ckpt"], number
        )
        assert not processes_with("steps.py", str(two_hosts.home))
        assert "Traceback" not in err


def test_node_whose_ranks_have_ended_says_which_ranks_still_run(two_hosts: Gpuctl) -> None:
    two_hosts.script("late.py", "import os, time\ntime.sleep(9 * int(os.environ['RANK']))\n")
    err = two_hosts.ok("train", "late.py").err
    assert "default-0: rank 0 has ended; rank 1 still runs\n" in err
    assert "default-1: rank 1 has ended" not in err


def test_failure_after_another_node_has_ended_is_told_at_once(two_hosts: Gpuctl) -> None:
    two_hosts.script(
        "late.py", "import os, sys, time\nif os.environ['RANK'] == '1':\n    time.sleep(4)\n    sys.exit(3)\n"
    )
    result = two_hosts("train", "--json", "late.py").json
    assert (result["status"], result["first_error"]["rank"]) == ("failed", 1)
    failed, node = (
        json.loads((two_hosts.run_folder(result["run"]) / name).read_text())
        for name in ("ranks/rank-1.json", "nodes/default-0.json")
    )
    assert node["ended_at"] - failed["ended_at"] < 6


def test_process_that_a_rank_left_is_named_and_ends_within_the_grace(two_hosts: Gpuctl) -> None:
    two_hosts.script(
        "leaves.py",
        "import subprocess\nfor word in ('5; touch uploaded', '300'):\n"
        "    subprocess.Popen(['sh', '-c', f'sleep {word}; :'])\n",
    )
    done = two_hosts("train", "--nnodes", "1", "--stop-grace", "9s", "leaves.py")
    assert done.status == 0
    assert "its ranks have ended; waiting up to 9 s for what they left behind: sh (pid " in done.err
    assert "default-0: killed what the ranks left behind: sh (pid " in done.err
    starting = done.err.index("train: leaves.py: torchrun loads torch and starts 1 rank\n")
    assert starting < done.err.index("train: leaves.py: 1 rank running\n")
    assert "uploaded" in done.out


def test_two_interrupts_stop_run_on_every_node(two_hosts: Gpuctl) -> None:
    process, run = running_train(two_hosts)
    interrupt(process)
    interrupt(process)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "gpuctl logs -f" not in err
    wait_for(
        lambda: not processes_with("steps.py", str(two_hosts.home)),
        what="the end of all ranks",
        deadline_s=20,
    )
    assert two_hosts.ok("results", run, "--json").json["runs"][0]["status"] == "stopped"


def test_train_refuses_second_simultaneous_run(two_hosts: Gpuctl) -> None:
    two_hosts.script("steps.py", STEPS)
    both = [two_hosts.start("train", "--detach", "--json", "steps.py") for _ in range(2)]
    ends = [(process.communicate(timeout=60), process.returncode) for process in both]
    assert sorted(code for _, code in ends) == [0, 1], ends
    [(_, output)] = [texts for texts, code in ends if code == 1]
    assert "it needs 2 nodes, and none is idle.\n  default-0 and default-1: the run 2" in output
    two_hosts.ok("stop")


def test_simultaneous_runs_on_one_node_each_take_idle_nodes(two_hosts: Gpuctl) -> None:
    two_hosts.script("steps.py", STEPS)
    item = ("train", "--nnodes", "1", "--detach", "--json", "steps.py")
    ends = [process.communicate(timeout=60) for process in [two_hosts.start(*item) for _ in range(2)]]
    first, second = sorted((json.loads(out)["run"] for out, _ in ends))
    output = next(err for out, err in ends if json.loads(out)["run"] == second)
    assert f"the run {first} is active on default-0. This run takes default-1" in output
    refused = two_hosts(*item)
    assert refused.status == 1
    assert "it needs 1 node, and none is idle." in refused.err
    assert (
        f"  default-1: the run {second} is still active. Fix: wait for it (gpuctl logs -f {second})"
        in refused.err
    )

    refused = two_hosts("stop")
    assert (refused.status, f"{first}, {second}. No run was stopped" in refused.err) == (2, True)
    stopped = two_hosts.ok("stop", "--json", second)
    assert (stopped.json["run"], stopped.json["ranks"][0]["node"]) == (second, "default-1")
    whole = two_hosts("train", "steps.py")
    assert (whole.status, "  default-1 is idle: --nnodes 1 starts a run there." in whole.err) == (1, True)
    planned = two_hosts.ok("train", "--nnodes", "1", "--dry-run", "--json", "steps.py").json
    assert [node["node"] for node in planned["nodes"]] == ["default-1"]
    two_hosts.script("short.py", "print('done')")
    elastic = two_hosts.ok("train", "--nnodes", "1:2", "--json", "short.py")
    assert [rank["node"] for rank in elastic.json["ranks"]] == ["default-1"]
    stopped = two_hosts.ok("stop", "--json")
    assert stopped.json["run"] == first, "the active run, not the latest"
    assert f"the latest run, has ended. The active run is {first}" in stopped.err
    idle = two_hosts.ok("train", "--nnodes", "1", "--json", "short.py")
    assert ([rank["node"] for rank in idle.json["ranks"]], "active" in idle.err) == (["default-0"], False)

    third, fourth = (two_hosts.ok(*item).json["run"] for _ in range(2))
    two_hosts.ok("stop", third)
    shared = next(Path(two_hosts.home).glob(f"**/runs/{fourth}/default-1/runner.json"))
    copy = Path(str(shared).replace("default-1/", "default-0/", 1))
    copy.parent.mkdir(parents=True)
    copy.write_text(json.dumps({**json.loads(shared.read_text()), "boot_id": "of another machine"}))
    refused = two_hosts(*item)
    assert (refused.status, f"default-0 and default-1: the run {fourth} is" in refused.err) == (1, True)
    two_hosts.ok("stop", fourth)


def test_train_tolerates_unexpected_files_and_metrics_lines(two_hosts: Gpuctl) -> None:
    text = (
        "import os\n"
        "folder = os.environ['GPUCTL_RUN_DIR']\n"
        "for name in ('logs/mine.txt', 'metrics/mine.jsonl', 'ranks/mine', 'logs/default-0.log.1'):\n"
        "    open(os.path.join(folder, name), 'w').write('mine')\n"
        "with open(os.environ['GPUCTL_METRICS'], 'a') as file:\n"
        "    file.write('[' * 100000 + '\\n' + '{\"step\": 1, \"loss\": NaN}\\n' + '{\"step\": ' + 'x' * 70000)\n"
    )
    two_hosts.script("odd.py", text)
    result = two_hosts.ok("train", "--json", "odd.py").json
    assert result["status"] == "succeeded"
    unused = result["unused_metrics"]
    assert (unused["lines"], unused["rank"], unused["why"]) == (2, 0, "it is longer than 64 KiB")
    assert "2 lines in GPUCTL_METRICS are not used" in two_hosts.ok("results").out


def test_down_works_despite_damaged_run_records(two_hosts: Gpuctl) -> None:
    two_hosts.script("my.py", "print('ran')")
    run = two_hosts.ok("train", "--json", "my.py").json["run"]
    (two_hosts.run_folder(run) / "result.json").write_text('{"format": 1, "run": "')
    for record in (two_hosts.run_folder(run) / "nodes").iterdir():
        record.write_text("{")
    assert two_hosts.ok("runs", "--json").json["runs"][0]["status"] == "unreadable"
    two_hosts.ok("status")
    two_hosts.ok("down", "--yes")


def test_stop_signal_int_lets_a_script_save_on_keyboard_interrupt(two_hosts: Gpuctl) -> None:
    begins = "import time\ntry:\n    print('begun', flush=True)\n    time.sleep(99)\n"
    two_hosts.script("saves.py", f"{begins}except KeyboardInterrupt:\n    print('saved')\n")
    run = two_hosts.ok("train", "--nnodes", "1", "--detach", "--json", "saves.py").json["run"]
    wait_for(lambda: "begun" in two_hosts.ok("logs", run).out, what="the script's begin")
    assert two_hosts.ok("stop", "--json", "--signal", "int").json["run"] == run
    assert "saved" in two_hosts.ok("logs", run).out


def test_stop_ends_a_detached_run(two_hosts: Gpuctl) -> None:
    two_hosts.script("steps.py", STEPS)
    began = two_hosts.ok("train", "--detach", "--json", "steps.py").json
    second = two_hosts("train", "steps.py")
    assert second.status == 1
    assert began["run"] in second.err
    stopped = two_hosts.ok("stop", "--json").json
    assert stopped["run"] == began["run"]
    assert (stopped["status"], stopped["reason"]) == ("stopped", "stopped")
    assert not processes_with("steps.py", str(two_hosts.home))
    again = two_hosts("stop")
    assert (again.status, "stopping run" in again.err) == (0, False), "stopping again is no error"


def test_down_during_a_run_requires_yes(two_hosts: Gpuctl) -> None:
    two_hosts.script("steps.py", STEPS)
    run = two_hosts.ok("train", "--detach", "--json", "steps.py").json["run"]
    refused = two_hosts("down")
    assert refused.status == 2
    assert run in refused.err
    assert "--yes" in refused.err
    assert processes_with("steps.py", str(two_hosts.home))
    two_hosts.ok("down", "--yes")
    assert not processes_with(str(two_hosts.home))
    assert two_hosts.ok("results", "--json").json["runs"][0]["status"] == "stopped"


def test_train_names_lost_node_and_stops_the_others(two_hosts: Gpuctl) -> None:
    machines = two_hosts.ok("status", "--json").json["machines"]
    process, _ = running_train(two_hosts)
    server_of(machines[1]).kill()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    result = json.loads(out)
    assert result["status"] == "failed"
    assert result["first_error"]["node"] == "default-1"
    assert "lost" in result["first_error"]["message"]
    assert result["reason"] == "node_lost"
    mine = processes_with(str(two_hosts.home / "clusters" / "default" / "local" / "default-0"))
    assert len(mine) == 1, "node 0 has its server left, and nothing of the run"


def test_train_refuses_changed_host_key_before_sending(two_hosts: Gpuctl) -> None:
    known_hosts = two_hosts.home / "clusters" / "default" / "known_hosts"
    first, second = known_hosts.read_text().splitlines()
    swapped = [f"{first.split()[0]} {second.split(None, 1)[1]}", second]
    known_hosts.write_text("\n".join(swapped) + "\n")
    two_hosts.script("my.py", "print('ran')")
    done = two_hosts("train", "my.py")
    assert done.status == 1
    assert "host key" in done.err
    assert "default-0" in done.err
    assert not (two_hosts.home / "runs").exists() or not list((two_hosts.home / "runs").iterdir())


def test_killed_runner_is_reported_and_leaves_no_process(two_hosts: Gpuctl) -> None:
    process, run = running_train(two_hosts)
    [runner] = (two_hosts.home / "clusters" / "default" / "local" / "default-1" / "home").glob(
        f".gpuctl-node/runs/{run}/default-1/runner.json"
    )
    os.kill(json.loads(runner.read_text())["pid"], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    error = json.loads(out)["first_error"]
    assert error["node"] == "default-1"
    assert "supervisor of the run was killed" in error["message"]
    assert error["reason"] == "runner_killed"
    assert not processes_with("steps.py", str(two_hosts.home))


def server_of(machine: "dict[str, int]") -> psutil.Process:
    """The SSH server of a local host."""
    [pid] = [
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == machine["port"]
    ]
    return psutil.Process(pid)


def test_train_names_silent_node_within_a_minute(two_hosts: Gpuctl) -> None:
    machines = two_hosts.ok("status", "--json").json["machines"]
    process, _ = running_train(two_hosts)
    server = server_of(machines[1])
    server.suspend()
    try:
        began = time.monotonic()
        out, err = process.communicate(timeout=75)
        assert time.monotonic() - began < 60
    finally:
        server.resume()
    assert process.returncode == 1, err
    error = json.loads(out)["first_error"]
    assert error["node"] == "default-1"
    assert "lost" in error["message"]
    # The node is back and its rank is still running: the run is not over until the node reports its end.
    assert processes_with("steps.py", str(two_hosts.home))
    assert two_hosts.ok("status", "--json").json["unheard"] == {json.loads(out)["run"]: ["default-1"]}
    assert two_hosts("down").status == 2, "a run that may be going on is asked about"
    after = two_hosts.ok("stop", "--json").json
    assert (after["status"], after["first_error"]) == ("failed", error), "what went wrong stays known"
    assert not processes_with("steps.py", str(two_hosts.home))


def test_train_reconnects_after_short_link_loss(two_hosts: Gpuctl) -> None:
    machines = two_hosts.ok("status", "--json").json["machines"]
    two_hosts.script("long.py", STEPS.replace("600", "300"))
    process = two_hosts.start("train", "--json", "long.py")
    wait_for(
        lambda: len(processes_with("long.py", str(two_hosts.home))) >= 6,
        what="both ranks at work",
        deadline_s=40,
    )
    server = server_of(machines[1])
    server.suspend()
    try:
        # Longer than gpuctl waits for a sign of life.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(18)
    finally:
        server.resume()
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert "reconnecting" in err
    result = json.loads(out)
    assert result["status"] == "succeeded"
    lines = (two_hosts.run_folder(result["run"]) / "metrics" / "rank-1.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 301)), "nothing lost, nothing twice"


def test_time_in_which_the_command_did_not_run_is_no_silence_of_the_nodes(two_hosts: Gpuctl) -> None:
    """Same as after Ctrl-Z or a closed lid: the link to one node returns later than the computer itself."""
    machines = two_hosts.ok("status", "--json").json["machines"]
    process, run = running_train(two_hosts)
    server = server_of(machines[1])
    process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(45)
        server.suspend()
        process.send_signal(signal.SIGCONT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(42)
    finally:
        server.resume()
        process.send_signal(signal.SIGCONT)
    metrics = [two_hosts.run_folder(run) / "metrics" / f"rank-{rank}.jsonl" for rank in (0, 1)]
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert "default-1: connection lost, reconnecting" in err
    assert "default-0: connection lost" not in err
    assert json.loads(out)["status"] == "succeeded"
    assert json.loads(out)["seconds"]["train"] > 60
    for file in metrics:
        assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == list(range(1, 601))


def test_stop_of_script_exiting_1_on_sigterm_is_no_failure(two_hosts: Gpuctl) -> None:
    """Many scripts exit 1 on SIGTERM: the run has not failed and is not restarted."""
    handler = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit('saved'))\n"
    two_hosts.script("steps.py", STEPS.replace("\nrank =", f"\n{handler}rank ="))
    process = two_hosts.start("train", "--json", "--max-restarts", "1", "steps.py")
    wait_for(
        lambda: (
            sum("begins" in log.read_text() for log in two_hosts.home.glob("runs/*/logs/rank-*.log")) == 2
        ),
        what="both ranks at work",
        deadline_s=40,
    )
    two_hosts.ok("stop")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert json.loads(out)["status"] == "stopped"
    assert {rank["exit_code"] for rank in json.loads(out)["ranks"]} == {1}
    assert len(two_hosts.ok("runs", "--json").json["runs"]) == 1
