"""Ed25519 keys in OpenSSH's own format: a cluster's key, and the host keys of its machines."""

from dataclasses import dataclass, field
from pathlib import Path

from inventories.disk import files
from provision.errors import ProvisionError


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    """A key pair in OpenSSH's format. The public key is `ssh-ed25519 AAAA…`, without a comment."""

    private: str = field(repr=False)
    public: str


def new_key() -> KeyPair:
    """Return a new key without a passphrase."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    return KeyPair(private=private.decode(), public=_public_text(key.public_key()))


def make_key(path: Path) -> str:
    """Write a new private key to `path` (0600) and return its public half.

    The folder must exist; an old file is replaced.
    """
    key = new_key()
    files.write_atomic(path, key.private.encode())
    return key.public


def ensure_key(path: Path) -> str:
    """Return the public half of the private key at `path`, which is made if missing.

    Raises ProvisionError if the file holds no usable key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    data = files.read_bytes(path)
    if data is None:
        return make_key(path)
    try:
        key = serialization.load_ssh_private_key(data, password=None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ProvisionError(
            f"'{path}' is no private key that gpuctl can use: {error}. "
            "End the cluster with `gpuctl down`, which removes the file, and run `gpuctl up` again."
        ) from error
    return _public_text(key.public_key())


def _public_text(public_key: object) -> str:
    from cryptography.hazmat.primitives import serialization

    text: bytes = public_key.public_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return text.decode()
