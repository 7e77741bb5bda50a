"""`python -m tests.fakes.aws_proxy --port P [--home DIR] [--hosts | --vms FILE] [--die-with-stdin]`."""

import argparse
import json
import os
import signal
import tempfile
import threading
from pathlib import Path

from tests.fakes.aws_proxy.api import ACCESS_KEY, SECRET_KEY
from tests.fakes.aws_proxy.server import REGION, Fake, make_server
from tests.fakes.control import Control
from tests.fakes.host_options import add_host_options, hosts_of


def client_env(url: str, home: Path) -> dict[str, str]:
    """Return the environment of a client; it reads nothing of the user's own accounts."""
    empty = home / "empty"
    empty.touch()
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(empty),
        "AWS_SHARED_CREDENTIALS_FILE": str(empty),
        "GPUCTL_ADDRESS_URL": f"{url}/_fake/address",
    }


def main() -> None:
    """Serve until SIGTERM, SIGINT, or the end of stdin."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.aws_proxy")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--home", type=Path)
    add_host_options(parser)
    parser.add_argument("--die-with-stdin", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fake-aws-") as temporary:
        home = (options.home or Path(temporary)).absolute()
        home.mkdir(parents=True, exist_ok=True)
        serve(options, home)


def serve(options: argparse.Namespace, home: Path) -> None:
    """Serve until a signal or the end of standard input."""
    control = Control()
    fake = Fake(control, hosts_of(options, home, control.settings.ssh_port))
    server = make_server(fake, options.port)

    def end(*_: object) -> None:
        threading.Thread(target=server.shutdown).start()

    def end_with_stdin() -> None:
        # Not through sys.stdin: a thread blocked in its read delays the interpreter's end.
        while os.read(0, 4096):
            continue
        end()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    if options.die_with_stdin:
        threading.Thread(target=end_with_stdin, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    print(json.dumps({"url": url, "pid": os.getpid(), "env": client_env(url, home)}), flush=True)
    server.serve_forever(poll_interval=0.1)
    fake.control.release()
    server.server_close()
    if fake.world.hosts:
        fake.world.hosts.close()


if __name__ == "__main__":
    main()
