"""The user's SSH agent, which may be there and not answer: asked with a deadline, and then done without.

paramiko's own has none: where an agent takes the connection and says nothing, it waits for ever.
"""

import os
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


class Client(paramiko.SSHClient):
    """Logs in with the keys of an agent that answers."""

    _asked: Agent | None = None

    def close(self) -> None:
        """Close the connection, and that to the agent, also where it never came to a connection."""
        super().close()
        if self._asked is not None:
            self._asked.close()

    def use_agent(self, *, login_s: float, answer_s: float | None = None) -> bool:
        """Ask the user's agent for its keys; False: there are none, or it does not answer.

        `login_s`: how long the login may take, and so a signature, too: nobody waits for a later one. An agent that
        did not answer is not asked again by this process.
        """
        path = os.environ.get("SSH_AUTH_SOCK", "")
        if not path or path in _silent:
            return False
        try:
            answer_s = ANSWER_S if answer_s is None else answer_s
            self._agent = self._asked = Agent(path, answer_s=answer_s, sign_s=login_s)
        except TimeoutError:
            with _lock:
                _silent.add(path)
            return False
        except (OSError, paramiko.SSHException):
            return False
        return True


def complaint() -> str:
    """What to say of an agent that does not answer, where logging in has failed; empty for others."""
    path = os.environ.get("SSH_AUTH_SOCK", "")
    if path not in _silent:
        return ""
    return (
        f" Your SSH agent ({path}, the variable SSH_AUTH_SOCK) did not answer within {ANSWER_S:.0f} s, so that its "
        "keys were not offered: start it again, or unset the variable."
    )
