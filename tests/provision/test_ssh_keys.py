"""Keys, as OpenSSH's own tool sees them."""

import stat
import subprocess

import pytest

from provision.errors import ProvisionError
from provision.ssh_keys import ensure_key, make_key


def test_make_key_writes_a_key_openssh_reads(tmp_path):
    path = tmp_path / "key"
    public = make_key(path)
    shown = subprocess.run(["ssh-keygen", "-y", "-f", path], capture_output=True, check=True, timeout=20)
    assert shown.stdout.decode().split()[:2] == public.split()
    assert public.startswith("ssh-ed25519 ")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_ensure_key_keeps_an_existing_key(tmp_path):
    path = tmp_path / "key"
    public = ensure_key(path)
    before = path.read_bytes()
    assert ensure_key(path) == public
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", [b"", b"nonsense", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_ensure_key_refuses_and_names_a_broken_key(tmp_path, text):
    path = tmp_path / "key"
    path.write_bytes(text)
    with pytest.raises(ProvisionError, match="key' is no private key"):
        ensure_key(path)
    assert path.read_bytes() == text
