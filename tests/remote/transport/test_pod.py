"""Commands in pods, through an API server."""

import json
import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
from support import a_machine, wait_for

from inventories import clocks
from inventories.disk.store import ClusterFolder, Store
from inventories.machine import Machine
from remote import facts
from remote.errors import AuthenticationFailed, ConnectionLost, MachineGone, NoPython, Unreachable
from remote.sessions.session import Node
from remote.transport import NO_STATUS, open_transport
from remote.transport.pods.pod import PodTransport
from tests.fakes.kube.api import TOKEN, KubeApi, Pod, kube_api


def machine(pod: str, *, context: str = "test", python: str | None = sys.executable) -> Machine:
    return a_machine(
        name="default-0",
        host="worker",
        user="ray",
        transport="pod",
        context=context,
        private_ip="10.0.0.1",
        gpus=None,
        id=pod,
        python=python,
    )


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeApi]:
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    with kube_api({"ours/worker": Pod(env=env), "ours/new": Pod(phase="Pending")}) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))
        yield api


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterFolder:
    return Store(tmp_path / "home").cluster("default")


@pytest.fixture
def node(api: KubeApi, cluster: ClusterFolder) -> Iterator[Node]:
    item = machine("ours/worker")
    node = Node(item, open_transport(item, cluster, 5))
    yield node
    node.close()


def test_pod_runs_shell_commands_in_the_home_folder(node: Node, tmp_path: Path) -> None:
    done = node.run("pwd; echo no >&2; exit 3", timeout_s=30)
    assert (done.exit_code, done.stdout, done.stderr) == (3, f"{tmp_path}\n".encode(), b"no\n")
    assert node.run("kill -9 $$", timeout_s=30).exit_code == 137


def test_command_is_sent_once_where_this_computer_slept_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, sleeps = list[bytes](), list[float]()
    clock = clocks.AwakeClock(lambda: clocks.passed_s() + sum(sleeps))
    monkeypatch.setattr(clocks._ticking, "_clock", clock)

    def answer(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                with server.accept()[0] as connection:
                    requests.append(connection.recv(64 * 1024))
                    if len(requests) < 3:
                        sleeps.append(60.0)

    transport = node.transport
    assert isinstance(transport, PodTransport)
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=answer, args=(server,), daemon=True).start()
        transport._context.configuration().host = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectionLost):
            transport.start("echo once")
        assert len(requests) == 1
        with pytest.raises(ConnectionLost):
            transport.start("read line", awaits_input=True)
        assert len(requests) == 3, "once more"
        server.shutdown(socket.SHUT_RDWR)


def test_commands_in_a_pod_may_open_many_files(api: KubeApi, cluster: ClusterFolder, tmp_path: Path) -> None:
    """Container runtimes may leave 1024, and allow more."""
    low = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096)); os.execv(%r, sys.argv)"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{low % sys.executable}" "$@"\n')
    python.chmod(0o755)
    item = machine("ours/worker", python=str(python))
    node = Node(item, open_transport(item, cluster, 5))
    assert node.run("ulimit -n", timeout_s=30).stdout == b"4096\n"
    node.close()


def test_pod_takes_input_to_its_end_and_gives_back_more_than_is_read_ahead(node: Node) -> None:
    process = node.transport.start("cat; echo over >&2", window_bytes=100_000)
    data = os.urandom(1_000_000)

    def feed() -> None:
        rest = data
        while rest:
            rest = rest[process.send(rest) :]
        process.end_input()

    feeder = Thread(target=feed)
    feeder.start()
    back = b""
    while part := process.recv(65536):
        back += part
    feeder.join()
    assert back == data
    assert (process.recv_stderr(100), process.exit_status(10)) == (b"over\n", 0)
    process.close()


def test_pod_answers_the_nodes_part(node: Node) -> None:
    assert facts.gather(node, ()).cpus >= 1


def test_pod_connects_to_its_ports(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        stream = node.transport.connect_port(port)
        peer, _ = server.accept()
        with peer:
            stream.send(b"ping")
            assert peer.recv(10) == b"ping"
            peer.sendall(b"pong")
            assert stream.recv(10) == b"pong"
            stream.end_input()
            assert peer.recv(10) == b""
        assert stream.recv(10) == b""
        stream.close()
    with pytest.raises(
        ConnectionLost, match=f"default-0: nobody takes connections at its port {port}: .*refused"
    ):
        node.transport.connect_port(port)


def test_input_of_a_command_that_has_ended_needs_no_end(node: Node) -> None:
    process = node.transport.start("exit 3")
    assert process.exit_status(20) == 3
    process.end_input()
    assert (process.recv(10), process.exit_status(1)) == (b"", 3)
    process.close()


@pytest.mark.parametrize("closing", [False, True])
def test_pod_tells_of_a_connection_that_breaks(node: Node, api: KubeApi, closing: bool) -> None:
    process = node.transport.start("echo began; read line")
    assert process.recv(100) == b"began\n"
    assert node.transport.is_open()
    api.break_links(closing=closing)
    with pytest.raises(ConnectionResetError):
        process.recv(100)
    assert (process.exit_status(10), node.transport.is_open()) == (NO_STATUS, False)
    process.close()


def test_pod_waits_no_longer_than_it_was_told(node: Node) -> None:
    process = node.transport.start("read line")
    process.settimeout(0.1)
    with pytest.raises(TimeoutError):
        process.recv(1)
    process.close()
    assert process.recv(1) == b"", "nothing comes from what was closed"


@pytest.mark.parametrize(
    ("pod", "context", "error", "sentence"),
    [
        ("ours/new", "test", Unreachable, "the pod ours/new is not running, but Pending"),
        (
            "ours/gone",
            "test",
            MachineGone,
            r"there is no pod ours/gone at http://\S+\. KubeRay puts another in its place",
        ),
        ("ours/worker", "other", Unreachable, "the kubeconfig has no usable context other"),
    ],
)
def test_pod_that_cannot_be_used_is_told(
    api: KubeApi, cluster: ClusterFolder, pod: str, context: str, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=f"default-0: {sentence}"):
        open_transport(machine(pod, context=context), cluster, 5)


def test_pod_is_not_reached_with_a_wrong_token_or_without_a_server(
    api: KubeApi, cluster: ClusterFolder, tmp_path: Path
) -> None:
    api.kubeconfig(tmp_path / "kubeconfig", token="another")
    with pytest.raises(AuthenticationFailed, match="the API server refuses: Unauthorized"):
        open_transport(machine("ours/worker"), cluster, 5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        api.port = server.getsockname()[1]
    api.kubeconfig(tmp_path / "kubeconfig")
    with pytest.raises(Unreachable, match=f"the API server http://127.0.0.1:{api.port} does not answer"):
        open_transport(machine("ours/worker"), cluster, 5)


def test_pod_without_python_says_so(api: KubeApi, cluster: ClusterFolder) -> None:
    item = machine("ours/worker", python="/no/python3")
    node = Node(item, open_transport(item, cluster, 5))
    with pytest.raises(NoPython, match=r"default-0: Python \(/no/python3\) is not there"):
        facts.gather(node, ())
    node.close()


def program(api: KubeApi, folder: Path, *, fails: int = 0) -> Path:
    """Write a token program that fails the first `fails` times; return the file that counts its runs.

    Tokens hold for four minutes, as OKE's, so the client requests a new token for each call.
    """
    version = "client.authentication.k8s.io/v1"
    ends = (datetime.now(UTC) + timedelta(minutes=4)).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"token": TOKEN, "expirationTimestamp": ends}
    credential = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    request, path = folder / "asked", folder / "program"
    path.write_text(
        f"#!/bin/sh\necho asked >> {request}\n[ $(wc -l < {request}) -gt {fails} ] && echo '{credential}'\n"
    )
    path.chmod(0o755)
    user = {"exec": {"apiVersion": version, "command": str(path), "interactiveMode": "Never"}}
    api.kubeconfig(folder / "kubeconfig", user=user)
    return request


def hello(cluster: ClusterFolder) -> bytes:
    item = machine("ours/worker")
    node = Node(item, open_transport(item, cluster, 5))
    try:
        return node.run("echo hello", timeout_s=30).stdout
    finally:
        node.close()


def test_program_that_gives_out_tokens_is_asked_once_for_many_pods(
    api: KubeApi, cluster: ClusterFolder, tmp_path: Path
) -> None:
    request = program(api, tmp_path)
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: hello(cluster), range(8))) == {b"hello\n"}
    assert request.read_text() == "asked\n"


def test_program_that_failed_is_asked_again(api: KubeApi, cluster: ClusterFolder, tmp_path: Path) -> None:
    program(api, tmp_path, fails=1)
    with pytest.raises(AuthenticationFailed):
        hello(cluster)

    def works() -> bool:
        with suppress(AuthenticationFailed):
            return hello(cluster) == b"hello\n"
        return False

    wait_for(works, what="the program to be asked again", deadline_s=15)


def test_kubeconfig_that_changes_is_read_again(api: KubeApi, cluster: ClusterFolder, tmp_path: Path) -> None:
    assert hello(cluster) == b"hello\n"
    (tmp_path / "kubeconfig").write_text("clusters: [")
    assert hello(cluster) == b"hello\n", "somebody is just writing it"
    api.kubeconfig(tmp_path / "kubeconfig", token="another")
    with pytest.raises(AuthenticationFailed):
        hello(cluster)
    api.kubeconfig(tmp_path / "kubeconfig")
    assert hello(cluster) == b"hello\n"
