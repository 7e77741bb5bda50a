"""PID 1 of a VM-like host: boots it by the steps on its standard input, then reaps and waits.

It ends at once, and all processes of the host with it, when its standard input ends: as if the power was cut.
At SIGTERM it asks all processes to end and gives them `GRACE_S`. Only the standard library, and started with
`-I -S`: inside it is the one process of this project.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

STEP_LIMIT_S = 60
SERVE_LIMIT_S = 30
GRACE_S = 5


def main() -> None:
    """Boot, report it in one line of JSON on standard output, and run until asked to end."""
    # /proc is still that of the machine outside, where this process has another number.
    outer_pid = int(Path("/proc/self").readlink().name)
    config = json.loads(sys.stdin.readline())
    for step in config["steps"]:
        run(step["argv"], step.get("text", ""))
        # After pivot_root, `/` is another folder than the one that this process is in.
        os.chdir("/")
    log = Path(config["service_log"])
    with log.open("ab") as output:
        server = subprocess.Popen(config["service"], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    wait_for_server(server, config["port"], log)
    say({"ready": True, "pid": outer_pid})
    wait_for_the_end()


def run(argv: "list[str]", text: str) -> None:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=STEP_LIMIT_S)
    if done.returncode:
        reason = done.stderr.strip() or done.stdout.strip()
        say({"ready": False, "error": f"{' '.join(argv)}: {reason}"})
        sys.exit(1)


def wait_for_server(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + SERVE_LIMIT_S
    while server.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    say({"ready": False, "error": f"nothing accepts connections at port {port}: {log.read_text().strip()}"})
    sys.exit(1)


def wait_for_the_end() -> None:
    """Reap until standard input ends or SIGTERM comes."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    while True:
        reap()
        ready = select.select([0, reading], [], [])[0]
        if 0 in ready and not os.read(0, 4096):
            return
        if reading in ready and signal.SIGTERM in os.read(reading, 4096):
            ask_all_to_end(reading)
            return


def ask_all_to_end(signals: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while reap() and (left := deadline - time.monotonic()) > 0:
        if select.select([signals], [], [], left)[0]:
            os.read(signals, 4096)


def reap() -> bool:
    """Collect ended children; return whether others remain."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def say(document: "dict[str, object]") -> None:
    print(json.dumps(document), flush=True)


if __name__ == "__main__":
    main()
