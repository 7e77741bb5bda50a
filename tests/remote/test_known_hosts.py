"""Host keys found in files that people and OpenSSH wrote."""

import subprocess
from pathlib import Path

import pytest

from remote.known_hosts import find


@pytest.fixture
def key(tmp_path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    return " ".join((tmp_path / "key.pub").read_text().split()[:2])


def test_lines_that_cannot_be_read_are_passed_over(key: str) -> None:
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


@pytest.mark.parametrize("mark", ["@revoked", "@cert-authority"])
def test_marked_lines_are_no_host_keys(key: str, mark: str) -> None:
    assert find(f"{mark} h {key}\n", "h") == {}


def test_hashed_names_are_found(key: str, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"[127.0.0.1]:2222 {key}\nh {key}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    text = file.read_text()
    assert text.startswith("|1|")
    assert find(text, "[127.0.0.1]:2222") == find(text, "h") == dict([key.split()])
    assert find(text, "127.0.0.1") == {}


def test_the_first_line_of_a_type_counts(key: str) -> None:
    kind, data = key.split()
    other = data[:-4] + "AAAA"
    assert find(f"h {key}\nh {kind} {other}\n", "h") == {kind: data}
