"""Test the launch of processes on a node: argv, environment and scripts, compared exactly."""

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from node_facts import facts

from inventories.errors import InvalidInput
from inventories.machine import Machine
from inventories.runs.commit import Commit
from inventories.runs.run import Run, RunNode
from remote.facts import cores_of_a_node
from remote.launchers import rank_environment, torchrun
from remote.launchers.rank_command import Script
from remote.sessions import node_payload
from remote.sessions.session import shell_command
from remote.shared.greeting import BEGIN, INSTALLED, READY, RUNS
from remote.transport import known_hosts, ssh_config


def run_of_two() -> Run:
    nodes = tuple(
        RunNode(
            name=f"c-{rank}",
            rank=rank,
            nproc=2,
            first_rank=2 * rank,
            run_dir="/home/ubuntu/.gpuctl-node/runs/R",
        )
        for rank in (0, 1)
    )
    return Run(
        run="R", cluster="c", mode="torchrun", script="my.py", args=("--lr", "0.1"), nodes=nodes,
        master_addr="10.0.0.2", master_port=20001, started_at="2026-01-01T00:00:00+00:00",
    )  # fmt: skip


def test_torchrun_argv_is_exact() -> None:
    run = run_of_two()
    script = Script(kind="file", target="my.py", args=("--lr", "0.1"))
    digest = node_payload.digest()
    assert torchrun.argv(run, run.nodes[1], facts(), script, "/home/ubuntu/code") == [
        "/usr/bin/python3", "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2",
        "--node-rank", "1", "--master-addr", "10.0.0.2", "--master-port", "20001",
        "--log-dir", "/home/ubuntu/.gpuctl-node/runs/R/torchrun", "--no-python",
        "/usr/bin/python3", "-I", f"/home/ubuntu/.gpuctl-node/bin/{digest}", "rank",
        "/home/ubuntu/.gpuctl-node/runs/R", "/home/ubuntu/code", "--",
        "/usr/bin/python3", "-u", "my.py", "--lr", "0.1",
    ]  # fmt: skip


def test_rank_environment_names_the_interface_and_user_values_win() -> None:
    run = run_of_two()
    made = rank_environment.rank_environment(
        run, run.nodes[0], facts(), cores=8, env={"OMP_NUM_THREADS": "3"}
    )
    assert made == {
        "GPUCTL_RUN_ID": "R",
        "GPUCTL_JOB_ID": "R",
        "GPUCTL_RUN_DIR": "/home/ubuntu/.gpuctl-node/runs/R",
        "OMP_NUM_THREADS": "3",
        "GLOO_SOCKET_IFNAME": "ens3",
        "NCCL_SOCKET_IFNAME": "=ens3",
        "NCCL_SOCKET_FAMILY": "AF_INET",
    }
    unknown = rank_environment.rank_environment(
        replace(run, commit=Commit(sha="abc", dirty=True)),
        run.nodes[0],
        facts(interfaces={}),
        cores=8,
        env={},
    )
    assert (unknown["GPUCTL_COMMIT"], unknown["GPUCTL_DIRTY"]) == ("abc", "1")
    assert not [name for name in unknown if name.endswith("_IFNAME")], "an unknown interface is not made up"
    assert unknown["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize(
    ("python", "on_node", "typed", "torch", "triton"),
    [
        ("/usr/bin/python3", (), {}, None, None),
        (
            "3fa9-linux/venv/bin/python",
            (),
            {},
            "3fa9-linux/compiled/NODE/torch",
            "3fa9-linux/compiled/NODE/triton",
        ),
        # A project's environment, which lies over another.
        (
            "3fa9-linux/projects/77/venv/bin/python",
            (),
            {},
            "3fa9-linux/compiled/NODE/torch",
            "3fa9-linux/compiled/NODE/triton",
        ),
        (
            "3fa9-linux/venv/bin/python",
            (),
            {"TRITON_CACHE_DIR": "/t"},
            "3fa9-linux/compiled/NODE/torch",
            "/t",
        ),
        ("3fa9-linux/venv/bin/python", ("TRITON_CACHE_DIR",), {}, "3fa9-linux/compiled/NODE/torch", None),
    ],
)
def test_compiled_code_is_kept_in_the_environment_unless_user_or_node_name_a_folder(
    python: str, on_node: tuple[str, ...], typed: dict[str, str], torch: str | None, triton: str | None
) -> None:
    environments = Path("/home/ubuntu/.gpuctl-node/envs")
    run = run_of_two()
    node_facts = replace(facts(), python=str(environments / python), compiled_code=on_node)
    made = rank_environment.rank_environment(run, run.nodes[0], node_facts, cores=8, env=typed)
    expected = [
        path and str(environments / path.replace("NODE", run.nodes[0].name)) for path in (torch, triton)
    ]
    assert [made.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")] == expected


def test_cores_are_shared_by_nodes_of_one_machine() -> None:
    result = {
        "a": facts(boot_id="x", cpus=8),
        "b": facts(boot_id="x", cpus=8),
        "c": facts(boot_id="y", cpus=3),
    }
    assert cores_of_a_node(result) == {"a": 4, "b": 4, "c": 3}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("echo $HOME | wc",), "echo $HOME | wc"),
        (("printf", "%s", "a b", "$HOME", "'"), shlex.join(["printf", "%s", "a b", "$HOME", "'"])),
        (("true",), "true"),
    ],
)
def test_shell_command_quotes_several_words_but_not_one(words: tuple[str, ...], line: str) -> None:
    assert shell_command(words) == line


def machine(**changed: object) -> Machine:
    values: dict[str, object] = {
        "name": "c-0", "rank": 0, "state": "running", "host": "203.0.113.9", "port": 2222, "user": "ubuntu",
        "private_ip": "10.0.0.2", "gpus": 0, "id": "i", "key_file": Path("/keys/id"), "host_key": "ssh-ed25519 AAAA",
    }  # fmt: skip
    return Machine(**{**values, **changed})  # type: ignore[arg-type]


def test_known_hosts_text_is_exact() -> None:
    machines = [machine(), machine(port=22, host_key="ssh-ed25519 BBBB"), machine(host_key=None)]
    assert (
        known_hosts.render(machines) == "[203.0.113.9]:2222 ssh-ed25519 AAAA\n203.0.113.9 ssh-ed25519 BBBB\n"
    )


def test_ssh_config_is_read_correctly_by_ssh(tmp_path: Path) -> None:
    text = ssh_config.render([machine(), machine(name="c-1", key_file=None)], Path("/c/known hosts"))
    config = tmp_path / "config"
    config.write_text(text)
    shown = subprocess.run(
        ["ssh", "-G", "-F", str(config), "c-0"], capture_output=True, text=True, check=True
    ).stdout
    lines = shown.splitlines()
    assert "hostname 203.0.113.9" in lines
    assert "port 2222" in lines
    assert "user ubuntu" in lines
    assert "stricthostkeychecking true" in lines
    assert "identitiesonly yes" in lines
    assert "userknownhostsfile /c/known hosts" in lines
    odd = Path('/c/50%h "q" \\d')
    config.write_text(ssh_config.render([machine(key_file=odd / "id")], odd / "known"))
    shown = subprocess.run(
        ["ssh", "-G", "-F", str(config), "c-0"], capture_output=True, text=True, check=True
    ).stdout.replace("%%", "%")
    assert f"identityfile {odd}/id" in shown.splitlines()
    assert f"userknownhostsfile {odd}/known" in shown.splitlines()
    for bad in ("/c/${HOME}", "/c/a\nb"):
        with pytest.raises(InvalidInput, match="can't be written"):
            ssh_config.render([machine()], Path(bad))
    config.write_text(text)
    other = subprocess.run(
        ["ssh", "-G", "-F", str(config), "c-1"], capture_output=True, text=True, check=True
    ).stdout
    assert "identitiesonly no" in other.splitlines(), "a machine without a key is reached with the user's own"


@pytest.mark.parametrize(
    ("host", "user"),
    [
        ("fe80::1%eth0", "ubuntu"),
        ("fe80::1%h", "me@corp"),
        ("box", "o'neil"),
        ("box", r"corp\o'neil"),
        ("box", r"corp\me"),
        ("box", "#me"),
        ("box", "=me"),
        ("box", "50%h"),
    ],
)
def test_ssh_config_keeps_special_characters_in_names(tmp_path: Path, host: str, user: str) -> None:
    config = tmp_path / "config"
    config.write_text(ssh_config.render([machine(host=host, user=user)], tmp_path / "known"))
    shown = subprocess.run(
        ["ssh", "-G", "-F", str(config), "c-0"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert f"hostname {host}" in shown
    assert f"user {user}" in shown


def test_payload_is_deterministic_and_small() -> None:
    data, digest = node_payload.packed(), node_payload.digest()
    for cached in (node_payload._files, node_payload.packed, node_payload.digest):
        cached.cache_clear()
    assert (node_payload.packed(), node_payload.digest()) == (data, digest)
    assert len(data) < 184 * 1024


def test_payload_boots_from_stdin_and_ignores_user_modules(tmp_path: Path) -> None:
    line = node_payload.first_command(sys.executable, "facts")
    request = b'{"private_ip": "127.0.0.1", "peers": ["127.0.0.1"], "firewall": false}\n'
    hostile = tmp_path / "cwd"
    hostile.mkdir()
    (hostile / "json.py").write_text("raise SystemExit('a module of the user was imported')")
    environment_ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(hostile)}
    words = {
        "input": b"\n" + BEGIN + node_payload.to_send(installed=False) + request,
        "capture_output": True,
        "cwd": hostile,
        "env": environment_,
        "check": True,
    }
    first = subprocess.run(["/bin/sh", "-c", line], **words)  # type: ignore[call-overload]
    assert first.stdout.startswith(b"\n" + RUNS + b"\n" + READY + b"1\n{")
    assert b'"free_port":' in first.stdout
    second = {**words, "input": BEGIN + node_payload.to_send(installed=True) + request}
    installed = subprocess.run(["/bin/sh", "-c", line], **second)  # type: ignore[call-overload]
    assert installed.stdout.startswith(b"\n" + RUNS + b"\n" + INSTALLED + b"\n" + READY + b"0\n{")
    later = {**words, "input": BEGIN + request}
    again = subprocess.run(["/bin/sh", "-c", node_payload.next_command(sys.executable, "facts")], **later)  # type: ignore[call-overload]
    assert b'"boot_id":' in again.stdout
    folder = tmp_path / ".gpuctl-node"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in (folder / "bin").iterdir()] == [node_payload.digest()]
