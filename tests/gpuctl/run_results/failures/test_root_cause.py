"""The exception that explains a log's end, from logs that Python and libraries write when a script fails."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpuctl.run_results.failures.log_errors import LogEnd, read
from inventories.runs.end_reasons import Cause, Reason

INNER = """
def encode():
    raise ValueError("vocabulary has 7 words")
encode()
"""
LOADING = """
import contextlib
def load():
    raise FileNotFoundError(2, "No such file or directory", "tokens.bin")
"""
BOXED = "from rich.traceback import install\ninstall()\n"
SPAWNED = "import os, subprocess, sys\n"
POOL = 'if __name__ == "__main__":\n    with '


def end_of(folder: Path, script: str, *words: str) -> LogEnd:
    """Run a script in a node's code folder, and read the end of its log."""
    code = folder / ".gpuctl-node" / "code" / "project-1"
    code.mkdir(parents=True)
    (code / "train.py").write_text(script)
    (code / "inner.py").write_text(INNER)
    done = subprocess.run(
        [sys.executable, "train.py", *words],
        cwd=code,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode, done.stdout
    return read(
        done.stdout.decode().replace('File "train.py"', f'File "{code}/train.py"'), code=done.returncode
    )


@pytest.mark.parametrize(
    ("script", "words", "place"),
    [
        pytest.param(
            "def load(n):\n    raise ValueError(f'shard {n} is corrupt')\nfound = []\nfor n in range(5):\n"
            "    try:\n        load(n)\n    except ValueError as error:\n        found.append(error)\n"
            "raise ExceptionGroup('loading', [ExceptionGroup('train', found), KeyError('label')])\n",
            "ValueError: shard 0 is corrupt; ValueError: shard 1 is corrupt; ValueError: shard 2 is corrupt; and 3 "
            "more (of ExceptionGroup: loading (2 sub-exceptions))",
            "train.py:2",
            id="group",
        ),
        pytest.param(
            "import asyncio\nasync def load():\n    raise ValueError('bad shard')\nasync def main():\n"
            "    async with asyncio.TaskGroup() as group:\n        group.create_task(load())\nasyncio.run(main())\n",
            "ValueError: bad shard (of ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception))",
            "train.py:3",
            id="task group",
        ),
        pytest.param(
            f"{LOADING}try:\n    load()\nexcept OSError as error:\n    raise RuntimeError('Training failed.') from "
            "error\n",
            "RuntimeError: Training failed, because of FileNotFoundError: [Errno 2] No such file or directory: "
            "'tokens.bin'",
            "train.py:4",
            id="cause",
        ),
        pytest.param(
            "try:\n    raise ValueError('loss is nan')\nfinally:\n    {}['cleanup']\n",
            "KeyError: 'cleanup', after ValueError: loss is nan",
            "train.py:2",
            id="cleanup",
        ),
        pytest.param(
            "import queue, threading\ndef fill():\n    raise ValueError('bad record')\n"
            "thread = threading.Thread(target=fill)\nthread.start()\nthread.join()\nqueue.Queue().get(timeout=1)\n",
            "ValueError: bad record",
            "train.py:3",
            id="thread of a queue",
        ),
        pytest.param(
            "import threading\ndef fill():\n    raise ValueError('bad record')\n"
            "thread = threading.Thread(target=fill, name='loader')\nthread.start()\nthread.join()\n"
            "raise RuntimeError('no batch')\n",
            "RuntimeError: no batch, after ValueError: bad record, in loader",
            "train.py:3",
            id="thread",
        ),
        pytest.param(
            "import threading, time\ndef fill():\n    time.sleep(0.3)\n    raise BrokenPipeError('closed')\n"
            "threading.Thread(target=fill).start()\nraise RuntimeError('no batch')\n",
            "RuntimeError: no batch",
            "train.py:6",
            id="thread that fails when the script has failed",
        ),
        pytest.param(
            "import os, signal, threading, time\nthreading.Thread(target=time.sleep, args=(2,)).start()\n"
            "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\nraise ValueError('bad label')\n",
            "ValueError: bad label",
            "train.py:4",
            id="interrupted while it waits for a thread",
        ),
        pytest.param(
            f"{SPAWNED}subprocess.run([sys.executable, 'inner.py'], check=True)\n",
            "ValueError: vocabulary has 7 words",
            "inner.py:3",
            id="program of its own",
        ),
        pytest.param(
            f"{SPAWNED}subprocess.run(['sh', '-c', 'echo cc: fatal error: no input files >&2; exit 3'], "
            "check=True)\n",
            "subprocess.CalledProcessError: Command '['sh', '-c', 'echo cc: fatal error: no input files >&2; exit "
            "3']' returned non-zero exit status 3., after cc: fatal error: no input files",
            "train.py:2",
            id="program without a traceback",
        ),
        pytest.param(
            f"from concurrent.futures import ProcessPoolExecutor\ndef work(n):\n    return 1 // n\n"
            f"{POOL}ProcessPoolExecutor(1) as pool:\n        list(pool.map(work, [0]))\n",
            "ZeroDivisionError: integer division or modulo by zero",
            "train.py:3",
            id="pool",
        ),
        pytest.param(
            "try:\n    raise ValueError('bad value')\nexcept ValueError as error:\n"
            "    error.add_note('in sample 7 of shard-3.tar')\n    raise\n",
            "ValueError: bad value in sample 7 of shard-3.tar",
            "train.py:2",
            id="note",
        ),
        pytest.param(
            "raise ValueError('''Invalid.\n\n  - lr: not a number\n  - data: no such folder\n''')\n",
            "ValueError: Invalid. - lr: not a number - data: no such folder",
            "train.py:1",
            id="message of several lines",
        ),
        pytest.param(
            "from pydantic import BaseModel\nclass Config(BaseModel):\n    lr: float\n    steps: int\n"
            "Config(lr='fast', steps='ten')\n",
            "pydantic_core._pydantic_core.ValidationError: 2 validation errors for Config lr Input should be a valid "
            "number, unable to parse string as a number [type=float_parsing, input_value='fast', input_type=str] "
            "steps Input should be a valid integer, unable to parse string as an integer [type=int_parsing, "
            "input_value='ten', input_type=str]",
            "train.py:5",
            id="pydantic",
        ),
        pytest.param(
            "import jsonschema\njsonschema.validate({'lr': 'fast'}, {'properties': {'lr': {'type': 'number'}}})\n",
            "jsonschema.exceptions.ValidationError: 'fast' is not of type 'number' Failed validating 'type' in "
            "schema['properties']['lr']: {'type': 'number'} On instance['lr']: 'fast'",
            "train.py:2",
            id="jsonschema",
        ),
        pytest.param(
            f"{BOXED}{LOADING}load()\n",
            "FileNotFoundError: [Errno 2] No such file or directory: 'tokens.bin'",
            "train.py:6",
            id="rich",
        ),
        pytest.param(
            f"{BOXED}{LOADING}try:\n    load()\nexcept OSError as error:\n    raise RuntimeError('no data') from "
            "error\n",
            "RuntimeError: no data, because of FileNotFoundError: [Errno 2] No such file or directory: 'tokens.bin'",
            "train.py:6",
            id="rich, of a cause",
        ),
        pytest.param(
            "import faulthandler, atexit\natexit.register(faulthandler.dump_traceback)\n"
            "raise ValueError('bad label')\n",
            "ValueError: bad label",
            "train.py:3",
            id="stacks after it",
        ),
        pytest.param(
            "import atexit, sys\natexit.register(print, '/x/a.py:12: UserWarning: leaked', file=sys.stderr)\n"
            "raise ValueError('bad label')\n",
            "ValueError: bad label",
            "train.py:3",
            id="warning after it",
        ),
        pytest.param(
            "raise ValueError('Größe von データ/学習.bin — ошибка')\n",
            "ValueError: Größe von データ/学習.bin — ошибка",
            "train.py:1",
            id="other languages",
        ),
    ],
)
def test_cause_is_named_with_its_place(tmp_path: Path, script: str, words: str, place: str) -> None:
    result = end_of(tmp_path, script)
    assert (result.words, result.place, result.traceback) == (words, place, True)


def test_reason_is_that_of_the_cause(tmp_path: Path) -> None:
    failed = (
        f"{LOADING}try:\n    load()\nexcept OSError as error:\n    raise RuntimeError('no data') from error\n"
    )
    assert end_of(tmp_path, failed).reason is Reason.FILE_NOT_FOUND


def test_handled_error_is_not_the_reason(tmp_path: Path) -> None:
    """A missing optional module is unrelated to an error in its replacement."""
    failed = "def slow():\n    raise ValueError('no')\ntry:\n    import no_module\nexcept ImportError:\n    slow()\n"
    result = end_of(tmp_path, failed)
    assert (result.reason, result.words[:14]) == (None, "ValueError: no")


PEER = "RuntimeError: [/gloo/transport/tcp/pair.cc:537] Connection closed by peer [10.0.0.2]:1"


@pytest.mark.parametrize(
    ("first", "last", "local"),
    [
        pytest.param("ValueError: bad label", PEER, True, id="fails, and then loses its peers"),
        pytest.param(
            PEER, "RuntimeError: Training failed", False, id="loses its peers, and tells it otherwise"
        ),
    ],
)
def test_lost_peer_is_a_cause_only_where_it_came_first(first: str, last: str, local: bool) -> None:
    trace = "Traceback (most recent call last):\n  x\n"
    for between in ("During handling of the above exception, another exception occurred:",
                    "The above exception was the direct cause of the following exception:"):  # fmt: skip
        result = read(f"{trace}{first}\n\n{between}\n\n{trace}{last}\n")
        assert result.traceback is local
        assert result.reason is (None if local else Reason.LOST_PEER)
        assert result.words == (
            "ValueError: bad label" if local else "RuntimeError: Connection closed by peer [10.0.0.2]:1"
        )


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("from concurrent.futures import ProcessPoolExecutor\nimport os\ndef work(n):\n    os.kill(os.getpid(), 9)\n"
         f"{POOL}ProcessPoolExecutor(1) as pool:\n        list(pool.map(work, [0]))\n", "BrokenProcessPool"),
        (f"{SPAWNED}subprocess.run(['sh', '-c', 'kill -9 $$'], check=True)\n", "died with <Signals.SIGKILL: 9>"),
    ],
)  # fmt: skip
def test_process_that_was_killed_is_told(tmp_path: Path, script: str, words: str) -> None:
    result = end_of(tmp_path, script)
    assert result.cause is (Cause.CHILD_GONE if "Pool" in words else Cause.CHILD_KILLED)
    assert words in result.words


WORKER = """Traceback (most recent call last):
  File "/x/site-packages/torch/utils/data/_utils/signal_handling.py", line 73, in handler
    _error_if_any_worker_fails()
RuntimeError: DataLoader worker (pid 23621) is killed by signal: Killed.{space}

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/h/.gpuctl-node/code/p-1/load.py", line 9, in <module>
    for batch in loader:
  File "/x/site-packages/torch/utils/data/dataloader.py", line 1304, in _try_get_data
    raise RuntimeError(
RuntimeError: DataLoader worker (pid(s) 23621) exited unexpectedly
"""


def test_worker_of_a_data_loader_is_told_with_its_signal() -> None:
    result = read(WORKER.format(space=" "), code=1)
    assert result.words == "RuntimeError: DataLoader worker (pid 23621) is killed by signal: Killed."
    assert (result.cause, result.place) == (Cause.CHILD_KILLED, "load.py:9")


LAUNCHER = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:{space}
============================================================
k.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-27_14:33:56
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 32090)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 32090
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-27_14:33:56
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {status}
  error_file: <N/A>
  traceback : {traceback}
============================================================
"""
AGENT = 'Traceback (most recent call last):\n  File "/x/torch/run.py", line 1032, in <module>\n    main()\n'


def test_rank_of_a_nested_launcher_is_told() -> None:
    status = "-9 (pid: 32091)  (SIGKILL)"
    killed = LAUNCHER.format(space=" ", status=status, traceback="Signal 9 (SIGKILL) received by PID 32091")
    result = read(AGENT + killed, code=1)
    assert result.cause is Cause.CHILD_KILLED
    assert result.words.endswith(
        "rank      : 1 (local_rank: 1) exitcode  : -9 (pid: 32091)  (SIGKILL) traceback : Signal 9 (SIGKILL) "
        "received by PID 32091"
    )
    inner = f"[rank1]: {AGENT.replace(chr(10), chr(10) + '[rank1]: ')}ValueError: bad label\n"
    lost = f"[rank0]: {AGENT.replace(chr(10), chr(10) + '[rank0]: ')}{PEER}\n"
    mixed = [line for pair in zip(lost.splitlines(), inner.splitlines(), strict=True) for line in pair]
    failed = LAUNCHER.format(
        space=" ", status="1 (pid: 32091)", traceback="To enable traceback see: https://x"
    )
    result = read(
        "\n".join(
            [*mixed, "E1127 14:28:17.723000 24140 torch/x.py:1002] failed (exitcode: 1)", AGENT + failed]
        )
    )
    assert (result.words, result.reason, result.traceback) == ("ValueError: bad label", None, True)
    recorded = LAUNCHER.format(space=" ", status="1 (pid: 32091)", traceback=(
        'Traceback (most recent call last):\n    File "/x/t.py", line 5, in main\n      load()\n  ValueError: label\n'
        "  of two lines\n  "
    ))  # fmt: skip
    assert read(AGENT + recorded).words == "ValueError: label of two lines"


@pytest.mark.parametrize(
    ("log", "code", "words"),
    [
        ("usage: t.py [-h]\nt.py: error: unrecognized arguments: --x\n", 2,
         "t.py: error: unrecognized arguments: --x"),
        ("╭─ Error ─────────╮\n│ Missing argument 'lr'. │\n╰───────────╯\n", 2, "Missing argument 'lr'."),
        ("╭─ Error ─╮\n│ Got unexpected extra argument (x) │\n╰──╯\n", 2, "Got unexpected extra argument (x)"),
        ("╭─ Unrecognized options ─╮\n│ Unrecognized options: --x │\n│ ──── │\n│ For full helptext, run t.py │\n"
         "│ --help │\n╰──╯\n", 2, "Unrecognized options: --x"),
        ("ERROR: Could not consume arg: --x=3\nUsage: t.py -\n\nFor detailed information, run:\n  t.py - --help\n", 2,
         "ERROR: Could not consume arg: --x=3"),
        ("FATAL Flags parsing error: Unknown command line flag 'x'\nPass --helpshort to see help on flags.\n", 1,
         "FATAL Flags parsing error: Unknown command line flag 'x'"),
        ("Could not override 'trainer.lr'.\nKey 'trainer' is not in struct\n    full_key: trainer\n\n"
         "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n", 1,
         "Could not override 'trainer.lr'."),
        ("terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA driver error: invalid\n"
         "Exception raised from x (most recent call first):\nframe #0: c10::Error::Error() + 0x57\n", -6,
         "c10::Error: CUDA driver error: invalid"),
        ("thread 'main' panicked at src/lib.rs:7: index out of range\nnote: run with `RUST_BACKTRACE=1`\n", -6,
         "thread 'main' panicked at src/lib.rs:7: index out of range"),
        ("epoch 2 loss 0.3\nepoch 3 loss 0.2\n", 3, "epoch 3 loss 0.2"),
    ],
)  # fmt: skip
def test_error_without_a_traceback_is_found_near_the_end(log: str, code: int, words: str) -> None:
    result = read(log, code=code)
    assert result.words == words
    assert (result.cause is Cause.ARGUMENTS) is (code == 2 or "lag" in words or "override" in words)


def test_exception_after_which_python_went_on_is_not_the_cause() -> None:
    ignored = "Exception ignored in: <x>\nTraceback (most recent call last):\n  x\nAssertionError: child\n"
    assert not read(f"epoch 3\n{ignored}", code=3).traceback
    raised = "Traceback (most recent call last):\n  x\nValueError: bad\n"
    assert read(raised + ignored).words == "ValueError: bad"
    handled = f"{raised}[1/3] next try\nusage: t.py\nt.py: error: unrecognized arguments: --x\n"
    assert read(handled, code=2).words == "t.py: error: unrecognized arguments: --x"


def test_place_is_that_of_the_outer_exception_where_the_cause_is_in_a_library() -> None:
    log = (
        'Traceback (most recent call last):\n  File "/x/hub.py", line 1, in f\n    x\nsocket.gaierror: no name\n\n'
        "The above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
        '  File "/h/.gpuctl-node/code/p-1/a.py", line 3, in <module>\n    load()\nOSError: We can not connect.\n'
    )
    result = read(log)
    assert (result.words, result.place) == (
        "OSError: We can not connect, because of socket.gaierror: no name",
        "a.py:3",
    )


def test_colours_and_ascii_boxes_are_read_as_well() -> None:
    code = "/h/.gpuctl-node/code/p-1/a.py"
    colours = (
        f'Traceback (most recent call last):\n  File \x1b[35m"{code}"\x1b[0m, line \x1b[35m3\x1b[0m, in '
        "\x1b[35m<module>\x1b[0m\n    f\x1b[31m()\x1b[0m\n\x1b[1;35mValueError\x1b[0m: \x1b[35mbad\x1b[0m\n"
    )
    box = (
        f"+---- Traceback (most recent call last) -----+\n| {code}:3 in <module>   |\n|   3 load()   |\n"
        "+--------------------------------------------+\nValueError: bad\n"
    )
    assert {(result.words, result.place) for result in (read(colours), read(box))} == {
        ("ValueError: bad", "a.py:3")
    }


def test_loguru_traceback_is_read() -> None:
    code = "/h/.gpuctl-node/code/p-1/train.py"
    log = (
        "2026-11-27 14:27:43.724 | ERROR    | __main__:<module>:7 - An error has been caught:\n"
        f'Traceback (most recent call last):\n\n> File "{code}", line 7, in <module>\n    main()\n    └ <main>\n\n'
        f'  File "{code}", line 6, in main\n    raise ValueError("bad batch")\n\nValueError: bad batch\n'
    )
    assert (read(log).words, read(log).place) == ("ValueError: bad batch", "train.py:6")


def test_line_that_rich_filled_exactly_keeps_its_space() -> None:
    full = "RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0"
    box = "╭─── Traceback (most recent call last) ".ljust(79, "─") + "╮"
    assert len(full) == len(box)
    log = "\n".join([box, "│ /x/t.py:8 in f │", "╰".ljust(79, "─") + "╯", full, "and [4] at entry 1"])
    assert read(log).words == f"{full} and [4] at entry 1"
    word = "ValueError:\n" + "a" * 80 + "\nbc"
    assert read("\n".join([box, "│ /x/t.py:8 in f │", "╰".ljust(79, "─") + "╯", word])).words.endswith("abc")


def test_actor_of_ray_that_died_is_named_with_the_reason() -> None:
    log = (
        'Traceback (most recent call last):\n  File "/x/t.py", line 9, in <module>\n    ray.get(ref)\n'
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Env\n"
        f"\tactor_id: {'d2' * 16}\n\tpid: 24029\n\tnamespace: b958aa5c-cc83-416d-a0e4-029b9cdc5c86\n"
        "\tip: 10.0.0.2\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR\n"
    )
    assert read(log, code=1).words == (
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task. class_name: Env "
        "pid: 24029 ip: 10.0.0.2 The actor is dead because its worker process has died"
    )
