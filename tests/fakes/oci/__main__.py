"""Start the control plane: `python -m tests.fakes.oci`, with `--help` for its options."""

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

from tests.fakes.control import Control
from tests.fakes.host_options import add_host_options, hosts_of
from tests.fakes.oci.account import REGION, new_account, write_config
from tests.fakes.oci.router import warm_up
from tests.fakes.oci.server import Server
from tests.fakes.oci.service import Service
from tests.fakes.oci.state import snapshot
from tests.fakes.oci.store import Cloud


def main() -> None:
    """Serve until SIGTERM or SIGINT, or optionally until standard input ends."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="fake-oci-") as temporary:
        _serve(options, (options.home or Path(temporary)).resolve())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.oci", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: chosen by the system")
    parser.add_argument("--home", type=Path, help="where keys, configuration and hosts are kept")
    parser.add_argument("--region", default=REGION, help="of the account; its domains keep their names")
    add_host_options(parser)
    parser.add_argument("--die-with-stdin", action="store_true", help="end when standard input ends")
    return parser.parse_args()


def _serve(options: argparse.Namespace, home: Path) -> None:
    account = new_account(options.region)
    config = write_config(account, home)
    control = Control()
    hosts = hosts_of(options, home, control.settings.ssh_port)
    cloud = Cloud(account, control, hosts)
    service = Service(cloud, control)
    control.snapshot = lambda: snapshot(cloud)
    control.on_reset = service.forget
    warm_up()
    server = Server(options.port, service)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    if options.die_with_stdin:
        threading.Thread(target=_watch_stdin, args=(over,), daemon=True).start()
    serving.start()
    try:
        _say_ready(server.url, config)
        over.wait()
    finally:
        control.release()
        server.shutdown()
        server.server_close()
        cloud.timers.close()
        if hosts:
            hosts.close()


def _say_ready(url: str, config: Path) -> None:
    env = {
        "GPUCTL_OCI_ENDPOINT": url,
        "OCI_CONFIG_FILE": str(config),
        "GPUCTL_ADDRESS_URL": f"{url}/_fake/address",
    }
    print(json.dumps({"url": url, "pid": os.getpid(), "env": env}), flush=True)


def _watch_stdin(over: threading.Event) -> None:
    # Not by sys.stdin, whose lock the interpreter wants when it ends.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    over.set()


if __name__ == "__main__":
    main()
