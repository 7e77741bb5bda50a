"""A step on a host's firewall: a value that can be printed for a person, and is executed exactly like that."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SUDO = "sudo "


@dataclass(frozen=True, kw_only=True)
class Run:
    """A program to be run as root."""

    argv: tuple[str, ...]
    stdin: str = ""

    def document(self) -> dict[str, Any]:
        """Return the document for the node's part."""
        return {"argv": list(self.argv), "stdin": self.stdin}

    def shell(self, root: str = SUDO) -> str:
        """Return the command line. `root`: what begins a command for root."""
        return _fed(f"{root}{shlex.join(self.argv)}", self.stdin)


@dataclass(frozen=True, kw_only=True)
class Write:
    """A file to replace, if it still has the content that the new text was made from."""

    path: str
    sha256: str
    """Of the content that has to be there."""
    text: str

    def document(self) -> dict[str, Any]:
        """Return the document for the node's part."""
        return {"path": self.path, "sha256": self.sha256, "text": self.text}

    def shell(self, root: str = SUDO) -> str:
        """Return the command line. `root`: what begins a command for root."""
        path = shlex.quote(self.path)
        check = f"echo {shlex.quote(f'{self.sha256}  {self.path}')} | {root}sha256sum --check --quiet"
        return _fed(f"{check} && {root}tee {path} >/dev/null", self.text)


Step = Run | Write


def places(steps: Iterable[Step]) -> tuple[str, ...]:
    """The programs that are run and the files that are written, each once, in order."""
    return tuple(dict.fromkeys(step.path if isinstance(step, Write) else step.argv[0] for step in steps))


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The remaining steps, in order; the reason for them, or for an empty list."""

    steps: tuple[Step, ...]
    reason: str
    known: bool = True
    """False: the firewall's rules could not be read, and `steps` would help if it filters."""
    sudo: bool = True
    """Whether the host has the command sudo."""

    @property
    def where(self) -> tuple[str, ...]:
        """The programs that are run and the files that are written, each once."""
        return places(self.steps)

    def shell(self) -> str:
        """Return the command lines of all steps."""
        return "\n".join(step.shell(SUDO if self.sudo else "") for step in self.steps)


def _fed(command: str, text: str) -> str:
    if not text:
        return command
    end = "" if text.endswith("\n") else "\n"
    return f"{command} <<'END'\n{text}{end}END"
