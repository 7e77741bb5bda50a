"""An SSH agent, which may exist and not answer: it is asked with a deadline, and skipped after that.

paramiko's own has no deadline: where an agent takes the connection and says nothing, it waits for ever.
"""

import socket
from threading import Lock

import paramiko
from paramiko.agent import AgentSSH

ANSWER_S = 10.0
"""For the list of its keys, which it has at hand."""

_silent: set[str] = set()
_lock = Lock()


class Agent(AgentSSH):
    """The agent behind a socket. Raises OSError or SSHException where it can't be used.

    `sign_s`: for a signature, which a person may have to allow.
    """

    def __init__(self, path: str, *, answer_s: float, sign_s: float) -> None:
        super().__init__()
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            stream.settimeout(answer_s)
            stream.connect(path)
            self._connect(stream)  # type: ignore[attr-defined]
            stream.settimeout(sign_s)
        except BaseException:
            stream.close()
            raise

    def close(self) -> None:
        """Close the connection to it."""
        self._close()  # type: ignore[attr-defined]


def open_agent(path: str, *, login_s: float, answer_s: float | None = None) -> Agent | None:
    """Connect to the agent at a socket's path and list its keys. `None`: no agent, or it does not answer.

    `login_s`: how long the login may take, and so a signature, too: nobody waits for a later one. An agent that did
    not answer is not asked again by this process.
    """
    if not path or path in _silent:
        return None
    try:
        return Agent(path, answer_s=ANSWER_S if answer_s is None else answer_s, sign_s=login_s)
    except TimeoutError:
        with _lock:
            _silent.add(path)
    except (OSError, paramiko.SSHException):
        pass
    return None


def complaint(path: str) -> str:
    """Return the sentence on an agent that does not answer, for a login that has failed; empty for others."""
    if path not in _silent:
        return ""
    return (
        f" Your SSH agent ({path}) did not answer within {ANSWER_S:.0f} s, so that its keys were not offered: start "
        "it again, or unset the variable SSH_AUTH_SOCK."
    )
