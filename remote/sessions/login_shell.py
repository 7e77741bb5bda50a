"""Get past the account's login shell, its start-up files and Python, to the nodes' part.

A login shell may print, read, or end before it runs anything. Nothing is sent until the nodes' part has spoken, but
some lines that a shell may read: empty ones for `read`, and the command itself for a shell that replaced the first.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

from inventories.machine import Machine
from inventories.user_programs import last_line, without_secrets
from remote.errors import BadAnswer, NodeFailed, NoPython, ShellFailed
from remote.shared.greeting import INSTALLED, READY, RUNS

BLANKS = 4
"""Empty lines for start-up files that read."""
MAX_PRINTED_BYTES = 256 * 1024
"""For all that start-up files print."""
LINE_BYTES = 64 * 1024
TRIAL = "echo this account runs commands"
REFUSALS = ("not available", "nologin", "not allowed")
"""In the answers of accounts that may run nothing."""
EXEC_FAILED = (126, 127)
"""Exit statuses of /bin/sh for a program that can't be started."""


@dataclass(kw_only=True)
class Greeting:
    """The lines before READY."""

    printed: bytearray = field(default_factory=bytearray)
    """Output of the login shell."""
    shell_runs: bool = False
    """Whether the login shell has run the command."""
    installed: bool = False
    """Whether the machine has the nodes' part of this version."""
    ready: bool = False


def decoys(command: str) -> bytes:
    """Return lines for whatever reads before the nodes' part does."""
    return b"\n" * BLANKS + command.encode() + b"\n"


DECOY_COUNT = BLANKS + 1
"""Lines that nothing has taken."""


def marked(command: str) -> str:
    """Return a person's command with a line ahead that proves that the login shell runs it."""
    return f"echo {shlex.quote(RUNS.decode().strip())}\n{command}"


def after_mark(receive: Callable[[int], bytes], greeting: Greeting) -> Callable[[int], bytes]:
    """Return a `recv` for the output of a command that was `marked`: without the mark and all before it."""

    def recv(size: int) -> bytes:
        while not greeting.shell_runs:
            if not (data := receive(size)):
                return b""
            greeting.printed += data
            before, mark, rest = greeting.printed.partition(RUNS)
            if mark:
                greeting.printed, greeting.shell_runs = before, True
                if rest:
                    return bytes(rest)
            else:
                del greeting.printed[:-MAX_PRINTED_BYTES]
        return receive(size)

    return recv


def read_greeting(reader: BinaryIO, greeting: Greeting, name: str) -> None:
    """Read until READY, or the end of the stream. Raises BadAnswer where a shell prints without end."""
    while not greeting.ready:
        line = reader.readline(LINE_BYTES)
        if not line:
            return
        if line == RUNS:
            greeting.shell_runs = True
        elif line == INSTALLED and greeting.shell_runs:
            greeting.installed = True
        elif line == READY:
            greeting.ready = True
        else:
            greeting.printed += line
        if len(greeting.printed) > MAX_PRINTED_BYTES:
            raise BadAnswer(f"{name}: its login shell prints without end, and does not run the command.")


def failure(machine: Machine, python: str, greeting: Greeting, code: int, errors: str) -> NodeFailed:
    """Return the error of a command that ended before the nodes' part spoke: the login shell's, or Python's."""
    answer = last_line(errors)
    if greeting.shell_runs or machine.transport != "ssh":  # others start programs without a login shell
        if code in EXEC_FAILED or (python in answer and "no such file" in answer.lower()):
            return NoPython(
                f"{machine.name}: Python ({python}) is not there, or can't be started: {answer or code}. Install "
                "python3, or name an interpreter with --python PATH or ansible_python_interpreter."
            )
        why = answer or f"it ended with exit status {code} and printed nothing"
        return NodeFailed(f"{machine.name}: {python} does not run gpuctl's part: {why}.")
    return shell_failure(machine, greeting, code, errors)


def shell_failure(machine: Machine, greeting: Greeting, code: int, errors: str) -> ShellFailed:
    """Return the error of a login shell that ended before it ran a command, with its answer."""
    answer = last_line(errors) or last_line(greeting.printed.decode(errors="replace"))
    if any(text in answer.lower() for text in REFUSALS):
        command = shlex.join(["chsh", "-s", "/bin/bash", machine.user])
        advice = f"Give the account {machine.user} a shell, as root there: {command}"
    else:
        advice = (
            "The account's shell, its start-up files (~/.bashrc and the like) and a ForceCommand of the server have "
            "to let commands without a terminal run. See: " + typed_ssh(machine, TRIAL)
        )
    printed = f"'{answer}'" if answer else "nothing"
    return ShellFailed(
        f"{machine.name}: the login shell of {machine.user} did not run the command: it ended with exit status "
        f"{code} and printed {printed}. {advice}"
    )


def silence(machine: Machine, greeting: Greeting) -> str:
    """Return the hint on a login shell from which nothing came until the time was over."""
    printed = last_line(greeting.printed.decode(errors="replace"))
    text = f" It printed '{printed}'." if printed else ""
    return (
        f" Logging in worked, and the login shell of {machine.user} has not run the command.{text} Its start-up "
        "files (~/.bashrc and the like) may wait for something, or the machine hangs. See: "
        + typed_ssh(machine, TRIAL)
    )


def typed_ssh(machine: Machine, command: str) -> str:
    """Return the ssh command line that runs a command on the machine."""
    words = ["ssh"]
    words += ["-p", str(machine.port)] if machine.port != 22 else []
    words += ["-i", str(machine.key_file)] if machine.key_file else []
    words += ["-J", machine.bastion] if machine.bastion else []
    if machine.proxy_command:
        if without_secrets(machine.proxy_command) != machine.proxy_command and machine.ssh_alias:
            return shlex.join(["ssh", machine.ssh_alias, command])  # their configuration has it
        words += ["-o", f"ProxyCommand={without_secrets(machine.proxy_command).replace('%', '%%')}"]
    return shlex.join([*words, f"{machine.user}@{machine.host}", command])
