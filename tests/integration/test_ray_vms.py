"""`--mode ray` on machines as clouds ship them: out of others' reach, gone without a trace, a lost host named."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support import Gpuctl, interrupt, wait_for
from vm_support import end_of, log_of, runs_of, up

from tests.fakes.vms import Host, Net, lacking, vms

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(lacking() is not None, reason=lacking() or ""),
]

TRAIN_S = 300.0
LOST_S = 60.0
"""Within which the loss of a machine ends the run."""
REACHED = """
import socket, sys
for port in sys.argv[2:]:
    with socket.socket() as probe:
        probe.settimeout(3)
        if probe.connect_ex((sys.argv[1], int(port))) == 0:
            print(port)
"""
JOIN = """
import sys
import ray
ray.init(sys.argv[1], log_to_driver=False)
print("joined")
"""
SUBMIT = """
import sys, urllib.error, urllib.request
headers = {"Authorization": "Bearer wrong"} if sys.argv[2:] else {}
try:
    urllib.request.urlopen(urllib.request.Request(sys.argv[1], b"{}", headers), timeout=10)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    """Two hosts as OCI's Ubuntu image is, which each test makes a cluster and leaves as they were."""
    with vms(tmp_path_factory.mktemp("net"), count=2, firewall="oci") as net:
        yield net


def rules(host: Host) -> tuple[list[str], str]:
    """The firewall in the kernel, without its counters and dates, and for the next boot."""
    now = host.root("iptables-save").stdout.splitlines()
    saved = host.root("cat /etc/iptables/rules.v4").stdout
    return [re.sub(r" \[.*", "", line) for line in now if not line.startswith("#")], saved


def listening(host: Host) -> set[int]:
    """Return the host's TCP ports with a listener, at any address."""
    lines = host.root("ss -ltnH").stdout.splitlines()
    return {int(line.split()[3].rpartition(":")[2]) for line in lines}


def left_of_ray(host: Host) -> list[str]:
    """Return Ray's leftovers on a host: its user's processes, folders, its token."""
    folders = "-name '*ray*' -o -name 'pymp-*'"
    polls = (
        f"ps -u {host.user} -o args= | grep -v ^sshd: || true",
        f"find /tmp /var/tmp /dev/shm /run -mindepth 1 -maxdepth 1 {folders}",
        f"find /home/{host.user}/.gpuctl-node/ray -mindepth 1 || true",
    )
    return [line for poll in polls for line in host.root(poll).stdout.splitlines()]


def assert_as_before(host: Host, firewall: tuple[list[str], str]) -> None:
    assert left_of_ray(host) == []
    assert listening(host) == {22}
    assert rules(host) == firewall


def start_train(gpuctl: Gpuctl, *words: str) -> "tuple[subprocess.Popen[str], str]":
    """A run that takes minutes, once it has a checkpoint; with its id."""
    before = len(runs_of(gpuctl))
    job = ("--model", "mlp", "--epochs", "9999", "--checkpoint-every", "1")
    process = gpuctl.start("train", "--mode", "ray", "--json", *words, "--", *job)

    def at_work() -> bool:
        assert process.poll() is None, process.communicate()
        runs = runs_of(gpuctl)
        metrics = runs[-1] / "metrics" / "rank-0.jsonl" if len(runs) > before else None
        return metrics is not None and metrics.exists() and '"epoch": 2' in metrics.read_text()

    wait_for(at_work, what="the ranks at work", deadline_s=TRAIN_S)
    return process, runs_of(gpuctl)[-1].name


def test_ray_run_is_closed_to_others_and_down_restores_hosts(gpuctl: Gpuctl, net: Net) -> None:
    before = [rules(host) for host in net.hosts]
    up(gpuctl, net)
    done = gpuctl(
        "train", "--mode", "ray", "--json", "--", "--epochs", "1", "--model", "mlp", timeout_s=TRAIN_S
    )
    assert done.status == 0, done.err
    assert (done.json["status"], done.json["world_size"]) == ("succeeded", 2)
    assert [(rank["node"], rank["exit_code"]) for rank in done.json["ranks"]] == [("gpu-0", 0), ("gpu-1", 0)]
    assert log_of(gpuctl, done.json["run"], 0).count("epoch 1/1") == 1

    head, worker = net.hosts
    status = gpuctl.ok("ray", "status", "--json").json["nodes"]
    for host, node in zip(net.hosts, status, strict=True):
        ports = listening(host)
        assert node["running"]
        assert {22, *node["ports"].values()} < ports
        words = [sys.executable, "-c", REACHED, host.address, *map(str, sorted(ports))]
        assert net.outsider.run(words).stdout.split() == ["22"]
    assert_needs_the_token(head, worker, status[0]["ports"])

    gpuctl.ok("down", "--yes")
    for host, firewall in zip(net.hosts, before, strict=True):
        assert_as_before(host, firewall)


def assert_needs_the_token(head: Host, worker: Host, ports: dict[str, int]) -> None:
    """Check that a host behind the firewall is refused without the token, or with another token."""
    tried = " ".join(str(ports[name]) for name in ("gcs", "agent", "client", "dashboard"))
    reached = worker.root(f"{sys.executable} -c '{REACHED}' {head.address} {tried}").stdout.split()
    assert reached == [str(ports[name]) for name in ("gcs", "agent", "client")], (
        "the dashboard is on loopback"
    )

    join = f"timeout 60 {sys.executable} -c '{JOIN}' {head.address}:{ports['gcs']}"
    for variables, output in (
        ("RAY_AUTH_MODE=token", "no authentication token was found"),
        ("RAY_AUTH_MODE=disabled", "Authentication token is missing or incorrect"),
    ):
        done = worker.root(f"{variables} {join}", timeout_s=90, check=False)
        assert done.returncode == 1
        assert "joined" not in done.stdout
        assert output in done.stderr
    jobs = f"http://{head.address}:{ports['agent']}/api/job_agent/jobs/"
    submitted = [
        worker.root(f"{sys.executable} -c '{SUBMIT}' {jobs} {word}").stdout for word in ("", "wrong")
    ]
    assert submitted == ["401\n", "403\n"]
    root = head.root("ls -d /tmp/gpuctl-ray-*").stdout.strip()
    assert head.root(f"stat --format %a {root}").stdout.strip() == "700", (
        "Ray lets everybody write in its folder"
    )


def test_ray_run_names_lost_host_and_restarts_without_it(gpuctl: Gpuctl, net: Net) -> None:
    before = [rules(host) for host in net.hosts]
    worker = net.hosts[1]
    up(gpuctl, net)
    process, run = start_train(gpuctl, "--max-restarts", "1")
    worker.power_off()
    result = gpuctl.run_folder(run) / "result.json"
    wait_for(result.exists, what="the end of the run", deadline_s=LOST_S)
    document = json.loads(result.read_text())
    assert (document["status"], document["first_error"]["node"]) == ("failed", "gpu-1")
    assert "the node was lost" in document["first_error"]["message"]
    assert document["train"]["loss"], "what was known by then is kept"

    def goes_on() -> bool:
        following = runs_of(gpuctl)[-1]
        metrics = following / "metrics" / "rank-0.jsonl"
        return following.name != run and metrics.exists() and '"step"' in metrics.read_text()

    wait_for(goes_on, what="a run from the checkpoint", deadline_s=TRAIN_S)
    interrupt(process)
    done = end_of(process)
    assert done.status == 130
    assert (done.json["resumed_from"], done.json["world_size"]) == (run, 1)
    assert "resumes from step-" in done.err

    worker.power_on()
    worker.wait_for_boot()
    gpuctl.ok("down", "--yes")
    for host, firewall in zip(net.hosts, before, strict=True):
        assert_as_before(host, firewall)


def test_ray_run_names_lost_head_and_keeps_results_so_far(gpuctl: Gpuctl, net: Net) -> None:
    before = [rules(host) for host in net.hosts]
    head, _ = net.hosts
    up(gpuctl, net)
    process, run = start_train(gpuctl)
    head.power_off()
    done = end_of(process, timeout_s=LOST_S)
    assert done.status == 1
    assert (done.json["run"], done.json["status"]) == (run, "failed")
    assert done.json["first_error"]["node"] == "gpu-0"
    assert "the node was lost" in done.json["first_error"]["message"]
    assert done.json["train"]["loss"], "what was known by then is kept"

    head.power_on()
    head.wait_for_boot()
    gpuctl.ok("down", "--yes")
    for host, firewall in zip(net.hosts, before, strict=True):
        assert_as_before(host, firewall)
