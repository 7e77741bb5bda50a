"""Apply user-data as an instance's first boot does: the part of cloud-init that decides who can log in."""

import base64
import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

IMAGE_USER = "ubuntu"


@dataclass(frozen=True, kw_only=True)
class FirstBoot:
    """The settings that an instance takes from its user-data."""

    user: str
    authorized_keys: tuple[str, ...]
    host_key: str | None
    """Private; `None`: the instance makes its own."""
    files: tuple[tuple[str, str], ...] = ()
    """Path and text of each file that it writes."""
    problem: str | None = None
    """Why the user-data was ignored, as far as it was."""


def read_user_data(
    user_data: bytes, *, authorized_keys: Sequence[str] = (), image_user: str = IMAGE_USER
) -> FirstBoot:
    """Parse user-data as cloud-init does: ignore unreadable parts; the instance boots nevertheless.

    `authorized_keys` are the keys given to the cloud's own API. They and the document's top-level ones go to the
    image's user. Only one user can log in: the image's, or if it has no key, the first user with a key.
    """
    config, problem = _cloud_config(user_data)
    users: dict[str, list[str]] = {}
    for entry in _as_list(config.get("users", ["default"])):
        fields = entry if isinstance(entry, dict) else {"name": entry}
        name = image_user if fields.get("name") == "default" else str(fields.get("name"))
        users.setdefault(name, []).extend(_as_list(fields.get("ssh_authorized_keys")))
    if image_user in users:
        users[image_user] += [*authorized_keys, *_as_list(config.get("ssh_authorized_keys"))]
    user = next((name for name in (image_user, *users) if users.get(name)), image_user)
    keys = [str(key).strip() for key in users.get(user, [])]
    if unusable := [key for key in keys if not _is_public_key(key)]:
        problem = f"These are no public keys: {unusable}."
    host_keys = config.get("ssh_keys")
    return FirstBoot(
        user=user,
        authorized_keys=tuple(key for key in keys if key not in unusable),
        host_key=host_keys.get("ed25519_private") if isinstance(host_keys, dict) else None,
        files=tuple((str(entry["path"]), _content(entry)) for entry in _as_list(config.get("write_files"))),
        problem=problem,
    )


def _cloud_config(user_data: bytes) -> tuple[dict[str, Any], str | None]:
    if not user_data:
        return {}, None
    try:
        text = (gzip.decompress(user_data) if user_data.startswith(b"\x1f\x8b") else user_data).decode()
        if not text.startswith("#cloud-config"):
            return {}, "The user-data does not begin with #cloud-config."
        config = yaml.safe_load(text)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, yaml.YAMLError) as error:
        return {}, f"The user-data can't be read: {error}"
    if not isinstance(config, dict):
        return {}, "The user-data is no mapping."
    return config, None


def _content(entry: dict[str, str]) -> str:
    if entry.get("encoding") == "gz+b64":
        return gzip.decompress(base64.b64decode(entry["content"])).decode()
    assert "encoding" not in entry, entry["encoding"]
    return entry["content"]


def _is_public_key(text: str) -> bool:
    try:
        load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
