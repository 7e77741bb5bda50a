"""Test the command that adds a key for logins, in a real shell."""

import subprocess
from pathlib import Path

from remote.sessions.authorized_keys import command_to_add

KEY = "ssh-ed25519 AAAA"


def test_key_is_added_once(tmp_path: Path) -> None:
    for key in (KEY, KEY, f"{KEY}AA"):
        subprocess.run(["sh", "-c", command_to_add(key)], env={"HOME": str(tmp_path)}, check=True)
    file = tmp_path / ".ssh" / "authorized_keys"
    assert file.read_text() == f"{KEY}\n{KEY}AA\n"
    assert file.stat().st_mode & 0o777 == 0o600
