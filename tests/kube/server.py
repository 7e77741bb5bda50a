"""The real parts of a cluster: etcd, the API server, the scheduler and the controller manager, on loopback."""

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import urllib3
import yaml

from tests.kube.client import Client, Refused

VARIABLE = "GPUCTL_TEST_KUBE"
"""Names the folder that `build.sh` has made."""
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
CONTROLLERS = "namespace,garbagecollector,deployment,replicaset"
START_S = 90.0
END_S = 15.0


def folder() -> Path:
    """Return the folder of the programs, existing or not; `build.sh` takes the same path."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(VARIABLE) or cache / "gpuctl-tests" / "kube")


def lacking() -> str | None:
    """Why there can be no server; `None`: there can."""
    missing = [name for name in PROGRAMS if not (folder() / "bin" / name).exists()]
    if missing:
        return "Kubernetes has not been built: tests/kube/build.sh does it in 7 minutes"
    return None


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that answers."""

    home: Path
    address: str
    ca_file: Path
    tokens: dict[str, str]
    """User to token: `admin` may do everything, `nobody` only what a role grants."""

    def client(self, user: str = "admin") -> Client:
        """Make requests as a user."""
        return Client(self.address, self.tokens[user], self.ca_file)

    def kubeconfig(self, path: Path, user: str = "admin") -> Path:
        """Write a file with one context, `test`."""
        cluster = {"server": self.address, "certificate-authority": str(self.ca_file)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(document))
        return path


@contextmanager
def kube_server(home: Path) -> Iterator[Server]:
    """Run a server, its files in `home`, until the block ends. Raises RuntimeError with the server's output."""
    home.mkdir(parents=True, exist_ok=True)
    etcd, peers, port = free_ports(3)
    tokens = {user: secrets.token_hex(16) for user in ("admin", "nobody")}
    groups = {"admin": '"system:masters"', "nobody": '""'}
    rows = [f"{token},{user},{user},{groups[user]}" for user, token in tokens.items()]
    (home / "tokens.csv").write_text("\n".join(rows) + "\n")
    subprocess.run(
        ["openssl", "genrsa", "-out", str(home / "service-accounts.key"), "2048"],
        check=True,
        capture_output=True,
    )
    store = f"http://127.0.0.1:{etcd}"
    address = f"https://127.0.0.1:{port}"
    with ExitStack() as running:
        started = [
            running.enter_context(
                program(
                    home,
                    "etcd",
                    f"--data-dir={home / 'etcd'}",
                    f"--listen-client-urls={store}",
                    f"--advertise-client-urls={store}",
                    f"--listen-peer-urls=http://127.0.0.1:{peers}",
                    "--unsafe-no-fsync",
                )
            ),
            running.enter_context(
                program(
                    home,
                    "kube-apiserver",
                    f"--etcd-servers={store}",
                    "--bind-address=127.0.0.1",
                    f"--secure-port={port}",
                    f"--cert-dir={home / 'certificates'}",
                    f"--service-account-key-file={home / 'service-accounts.key'}",
                    f"--service-account-signing-key-file={home / 'service-accounts.key'}",
                    f"--service-account-issuer={address}",
                    f"--token-auth-file={home / 'tokens.csv'}",
                    "--authorization-mode=RBAC",
                    "--service-cluster-ip-range=10.0.0.0/24",
                    "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
                    "--allow-privileged=true",
                )
            ),
        ]
        server = Server(
            home=home,
            address=address,
            ca_file=home / "certificates" / "apiserver.crt",
            tokens=tokens,
        )
        _wait_until_ready(server, started)
        config = f"--kubeconfig={server.kubeconfig(home / 'controllers.kubeconfig')}"
        alone = ("--leader-elect=false", "--port=0", "--secure-port=0", config)
        running.enter_context(program(home, "kube-scheduler", *alone))
        running.enter_context(
            program(home, "kube-controller-manager", f"--controllers={CONTROLLERS}", *alone)
        )
        yield server


def free_ports(count: int) -> list[int]:
    """Return free ports of loopback."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]


@contextmanager
def program(home: Path, name: str, *options: str) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a program of the cluster, its log in `home`, until the block ends."""
    with (home / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(folder() / "bin" / name), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(server: Server, started: "Sequence[subprocess.Popen[bytes]]") -> None:
    output = "it has no certificate yet"
    limit = time.monotonic() + START_S
    while time.monotonic() < limit:
        for process in started:
            if process.poll() is not None:
                raise RuntimeError(f"{process.args} has ended:\n{_tail(server.home)}")
        if server.ca_file.exists():
            try:
                server.client().call("GET", "/readyz")
                return
            except (urllib3.exceptions.HTTPError, OSError, Refused) as error:
                output = str(error)
        time.sleep(0.1)
    raise RuntimeError(f"the API server is not ready after {START_S:.0f} s: {output}\n{_tail(server.home)}")


def _tail(home: Path) -> str:
    logs = [home / f"{name}.log" for name in PROGRAMS]
    return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-2000:]}" for log in logs if log.exists())
