"""The credential plug-in of a kubeconfig: a program that prints a token, run with a deadline.

The official client runs it as well, without a deadline, and continues as `system:anonymous` where it fails.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from tempfile import TemporaryFile
from typing import IO, Any

from kubernetes.config import ConfigException

from inventories.clocks import awake_s
from inventories.user_programs import printable, signal_group, without_secrets

WITHOUT_TERMINAL_S = 30.0
"""For a plug-in that can ask nobody."""
WITH_A_PERSON_S = 120.0
"""For a plug-in on a terminal, which may ask for a code, or have somebody log in with a browser."""
POLL_S = 0.5
CONFIG = "client.authentication.k8s.io/exec"
"""Name of the extension of a cluster that is meant for its plug-in."""
MAX_QUOTED = 400
"""The maximum number of quoted characters of a plug-in's output."""


class PluginFailed(ConfigException):  # type: ignore[misc]  # the client has no types
    """The plug-in gave no credentials; the message names it, says why, and what to do."""


def credentials(
    plugin: Mapping[str, Any], *, context: str, cluster: Mapping[str, Any], folder: str | None
) -> dict[str, Any]:
    """Run the plug-in and return the `status` that it prints: a `token`, or a certificate and its key.

    `plugin`: `exec` of a user of a kubeconfig. `context`: its name, for messages. `cluster`: for a plug-in with
    `provideClusterInfo`. `folder`: the kubeconfig's, in which the plug-in runs. Raises PluginFailed if it gave no
    credentials within its time.
    """
    name = f"The credential plug-in '{plugin.get('command')}' of context {context}"
    interactive = plugin.get("interactiveMode") != "Never" and bool(sys.stdin and sys.stdin.isatty())
    info: dict[str, Any] = {"interactive": interactive}
    if plugin.get("provideClusterInfo"):
        extensions = cluster.get("extensions") or ()
        settings = [extension.get("extension") for extension in extensions if extension.get("name") == CONFIG]
        info["cluster"] = {**cluster, **({"config": settings[0]} if settings else {})}
    version = str(plugin.get("apiVersion"))
    env = {str(variable.get("name")): str(variable.get("value")) for variable in plugin.get("env") or ()}
    env["KUBERNETES_EXEC_INFO"] = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": info})
    argv = [str(word) for word in (plugin.get("command") or "", *(plugin.get("args") or ()))]
    printed = _run(
        name,
        argv,
        os.environ | env,
        folder,
        interactive=interactive,
        hint=str(plugin.get("installHint") or ""),
    )
    try:
        document = json.loads(printed)
        status, printed_version = document["status"], document.get("apiVersion")
        good = isinstance(status, dict) and (
            status.get("token") or (status.get("clientCertificateData") and status.get("clientKeyData"))
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PluginFailed(
            f"{name} printed no credentials: its output is not the JSON of an ExecCredential. See in your kubeconfig "
            "whether its `command` and `args` are right."
        ) from None
    if printed_version != version:
        raise PluginFailed(
            f"{name} printed credentials of version {printed_version}, and your kubeconfig asks for {version}. "
            "Write the kubeconfig again with the provider's own command, or update the plug-in."
        )
    if not good:
        raise PluginFailed(
            f"{name} printed no token and no certificate with its key. Log in again as the provider of the cluster "
            "describes it, and run the command again."
        )
    return dict(status)


def _run(
    name: str, argv: list[str], env: Mapping[str, str], folder: str | None, *, interactive: bool, hint: str
) -> bytes:
    """Return the output of the program.

    Files take it, as a child of the program may hold a pipe open for ever.
    """
    limit_s = WITH_A_PERSON_S if interactive else WITHOUT_TERMINAL_S
    with TemporaryFile() as output, TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                argv,
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=folder or None,
                env=dict(env),
                start_new_session=not interactive,  # a session of its own has no terminal
            )
        except OSError as error:
            why = "is not installed here" if isinstance(error, FileNotFoundError) else "can't be started"
            raise PluginFailed(
                f"{name} {why}: {error.strerror}. {hint or 'Install it, or have PATH name its folder.'}"
            ) from error
        try:
            status = _wait(process, errors, limit_s, interactive=interactive)
        finally:
            if process.poll() is None:
                if not interactive:
                    signal_group(process.pid, signal.SIGKILL)
                process.kill()
                process.wait()
        size = errors.seek(0, os.SEEK_END)
        errors.seek(max(0, size - 4 * MAX_QUOTED))
        words = (printable(word) for word in errors.read().decode(errors="replace").split())
        text = " ".join(filter(None, words)).rstrip(".")
        message = (f": …{text[-MAX_QUOTED:]}" if len(text) > MAX_QUOTED else f": {text}") if text else ""
        if status is None:
            raise PluginFailed(
                f"{name} did not end within {limit_s:.0f} s{message}. Run {_by_hand(argv)} to see what it waits for."
            )
        if status != 0:
            raise PluginFailed(
                f"{name} failed with exit status {status}{message}. Log in again as it asks for, and run the command "
                "again."
            )
        output.seek(0)
        return output.read()


def _wait(
    process: "subprocess.Popen[bytes]", errors: IO[bytes], limit_s: float, *, interactive: bool
) -> int | None:
    """Wait for the program's exit status; `None`: it is still running. Print its output for people."""
    deadline = awake_s() + limit_s
    shown = 0
    while (left_s := deadline - awake_s()) > 0:
        try:
            return process.wait(min(POLL_S, left_s))
        except subprocess.TimeoutExpired:
            new = os.pread(errors.fileno(), 64 * 1024, shown) if interactive else b""
            if new:
                shown += len(new)
                sys.stderr.write(new.decode(errors="replace"))
                sys.stderr.flush()
    return None


def _by_hand(argv: list[str]) -> str:
    """Return the command as somebody types it, without words that may be a secret."""
    command = shlex.join(argv)
    return f"`{command}` by hand" if without_secrets(command) == command else "it by hand"
