"""Host keys found in files that people and OpenSSH wrote."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support import a_machine

from inventories.machine import Machine
from remote.errors import HostKeyRejected
from remote.transport.host_keys import pin
from remote.transport.known_hosts import find


def make_key(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


@pytest.fixture
def key(tmp_path: Path) -> str:
    return make_key(tmp_path / "key")


@pytest.fixture
def other(tmp_path: Path) -> str:
    return make_key(tmp_path / "other")


@pytest.fixture
def box() -> Machine:
    """Return an unreachable machine, so that reading its host key fails."""
    return a_machine(name="box", state="unknown", host="box.invalid", private_ip="", gpus=None)


def test_known_hosts_find_skips_unreadable_lines(key: str) -> None:
    kind, data = key.split()
    text = "\n".join(
        (
            "other ssh-ed25519 AAAA!",
            "other ssh-ed25519 A",
            f"other ssh-ed25519 {data[:40]}",
            "h ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTY=",
            "h ssh-rsa AAAAB3NzaC1yc2E=",
            "h unheard-of AAAA",
            "|1|damaged ssh-ed25519 " + data,
            "|1|AAAA|BBBB ssh-ed25519 " + data,
            "nonsense",
            "",
            "# h " + key,
            f"  h,other\t{kind}   {data} a comment",
        )
    )
    assert find(text, "h") == {kind: data}


@pytest.mark.parametrize("mark", ["@revoked", "@cert-authority", "@unheard-of", "@revoked @revoked"])
def test_known_hosts_find_skips_lines_with_markers(key: str, mark: str) -> None:
    assert find(f"{mark} h {key}\n", "h") == {}


def test_known_hosts_find_matches_hashed_names(key: str, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"[127.0.0.1]:2222 {key}\nh {key}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    text = file.read_text()
    assert text.startswith("|1|")
    assert find(text, "[127.0.0.1]:2222") == find(text, "h") == dict([key.split()])
    assert find(text, "127.0.0.1") == {}


def test_known_hosts_find_takes_the_first_line_of_a_key_type(key: str) -> None:
    kind, data = key.split()
    other = data[:-4] + "AAAA"
    assert find(f"h {key}\nh {kind} {other}\n", "h") == {kind: data}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("node-?.Example", True),
        ("*.example", True),
        ("*", True),
        ("n*d*1**example", True),
        ("NODE-1.example", True),
        ("node-?", False),
        ("*.example?", False),
        ("node-[1].example", False),
        ("*.example,!node-1.example", False),
        ("!node-?.example,node-1.example", False),
        ("*.example,!node-2.example", True),
        ("!node-2.example", False),
    ],
)
def test_known_hosts_find_matches_wildcards_and_negations(key: str, names: str, expected: bool) -> None:
    assert find(f"{names} {key}\n", "node-1.example") == (dict([key.split()]) if expected else {})


def test_known_hosts_find_takes_brackets_literally(key: str) -> None:
    assert find(f"[10.0.0.*]:2222 {key}\n", "[10.0.0.7]:2222") == dict([key.split()])
    assert find(f"[10.0.0.*]:2222 {key}\n", "[10.0.0.7]:2223") == {}
    assert find(f"10.0.0.[0-9] {key}\n", "10.0.0.7") == {}


def test_known_hosts_find_prefers_the_exact_host_name_over_wildcards(key: str, other: str) -> None:
    assert find(f"* {other}\nh {key}\n", "h") == dict([key.split()])


def test_known_hosts_find_leaves_out_a_revoked_key(key: str, other: str) -> None:
    assert find(f"h {other}\nh {key}\n@revoked * {other}\n", "h") == dict([key.split()])


def test_pin_reads_all_known_hosts_files_as_one(box: Machine, key: str, other: str, tmp_path: Path) -> None:
    files = (tmp_path / "none", tmp_path / "mine", tmp_path / "everybodys")
    files[1].write_text(f"*.invalid {other}")
    files[2].write_text(f"box.invalid {key}\n")
    assert pin(box, files, accept_new=False).host_key == key
    files[1].write_text(f"@revoked *.invalid {key}")
    with pytest.raises(HostKeyRejected, match="@revoked"):
        pin(box, files, accept_new=False)


@pytest.mark.parametrize("accept_new", [False, True])
def test_pin_refuses_a_revoked_key(box: Machine, key: str, tmp_path: Path, accept_new: bool) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"box.invalid {key}\n@revoked box.invalid {key}\n")
    with pytest.raises(HostKeyRejected, match=r"the host key of box\.invalid is marked @revoked"):
        pin(box, [file], accept_new=accept_new)


def test_pin_refuses_a_revoked_key_of_the_inventory(
    box: Machine, key: str, other: str, tmp_path: Path
) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"@revoked * {key}\n")
    with pytest.raises(HostKeyRejected, match="@revoked"):
        pin(replace(box, host_key=key), [file], accept_new=False)
    assert pin(replace(box, host_key=other), [file], accept_new=False).host_key == other
