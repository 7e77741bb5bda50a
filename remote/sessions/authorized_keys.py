"""The file of a login's SSH keys on a machine."""

import shlex


def command_to_add(public_key: str) -> str:
    """Return shell text that adds a key to the user's own file, unless it is there."""
    line, file = shlex.quote(public_key.strip()), "~/.ssh/authorized_keys"
    return f"umask 077; mkdir -p ~/.ssh; touch {file}; grep -qxF {line} {file} || echo {line} >>{file}"
