"""A new API server: its address, the wait for its answer, and its kubeconfig, for kubectl and the official clients.

Its name and its certificate may come late. A hidden command of gpuctl makes tokens: the kubeconfig has no secret.
"""

import base64
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import yaml

from inventories.errors import InvalidInput
from inventories.kube_context import not_strict
from provision.errors import BadCredentials
from provision.waiting import Clock, Say, Waiting

ANSWERS_WITHIN_S = 600.0
TIMEOUT_S = 10.0
PLUGIN = ("-P", "-m", "gpuctl")
TOKEN_COMMANDS = ("eks-token", "oke-token")
TOKEN_OPTIONS = {"--name", "--cluster-id", "--region", "--profile"}
CREDENTIAL_VERSION = "client.authentication.k8s.io/v1"


@dataclass(frozen=True, kw_only=True)
class ApiServer:
    """The address of an API server, and the authority of its certificate."""

    url: str
    authority: str
    """The authority's certificate, base64 of PEM. Empty: this computer trusts it already."""


def wait_ready(clock: Clock, server: ApiServer, token: Callable[[], str], say: Say) -> None:
    """Wait until the server is ready. Raises BadCredentials if it refuses us, CreateFailed at the deadline."""
    refused_until = clock.now() + ANSWERS_WITHIN_S / 2

    def is_ready() -> tuple[bool | None, str]:
        status, why = _status(server, token())
        if status in (401, 403) and clock.now() > refused_until:
            raise BadCredentials(f"The API server {server.url} does not let us in ({status}).")
        return (True if status == 200 else None), why

    Waiting(clock=clock, say=say).wait_until("the API server", is_ready, ANSWERS_WITHIN_S)


def _status(server: ApiServer, token: str) -> tuple[int | None, str]:
    """Return the status of the server's answer, and the problem as a clause."""
    request = urllib.request.Request(  # noqa: S310 - the address is the cloud's own
        f"{server.url}/readyz", headers={"Authorization": f"Bearer {token}"}
    )
    authority = base64.b64decode(server.authority).decode()
    context = not_strict(ssl.create_default_context(cadata=authority)) if authority else None
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:  # noqa: S310
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, f"it answers {error.code}"
    except OSError as error:
        return None, f"it does not answer: {getattr(error, 'reason', None) or error}"


def kubeconfig(name: str, server: ApiServer, command: Sequence[str]) -> bytes:
    """Return a kubeconfig with one context, `name`. `command`: the words after `gpuctl` that print a credential."""
    cluster: dict[str, Any] = {"server": server.url}
    if server.authority:
        cluster["certificate-authority-data"] = server.authority
    plugin = {
        "apiVersion": CREDENTIAL_VERSION,
        "command": sys.executable,
        "args": [*PLUGIN, *command],
        "env": None,
        "interactiveMode": "Never",
        "provideClusterInfo": False,
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"exec": plugin}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return yaml.safe_dump(document, sort_keys=False).encode()


def with_local_plugin(text: str) -> bytes:
    """Return a kubeconfig of `kubeconfig` that another computer made, with the Python of this one.

    Nothing else of the text is kept, as a kubeconfig can name any program. Raises InvalidInput for another text.
    """
    try:
        document = yaml.safe_load(text)
        (context,), (cluster,), (user,) = (document[key] for key in ("contexts", "clusters", "users"))
        authority = cluster["cluster"].get("certificate-authority-data", "")
        server = ApiServer(url=cluster["cluster"]["server"], authority=authority)
        plugin = user["user"]["exec"]
        command = plugin["args"][len(PLUGIN) :]
        made = kubeconfig(context["name"], server, command)
        (user,) = yaml.safe_load(made)["users"]
        unknown = command[0] not in TOKEN_COMMANDS or not set(command[1::2]) <= TOKEN_OPTIONS
        unknown |= user["user"]["exec"] != plugin | {"command": sys.executable}
    except (yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError):
        unknown = True
    if unknown:
        raise InvalidInput(
            "The kubeconfig in the file is not as gpuctl writes it: it could start a program on this computer. "
            "Nothing was changed. Ask the file's sender where it is from."
        )
    return made


def credential(token: str, ends_at: datetime) -> dict[str, Any]:
    """Return a token as a credential plug-in prints it."""
    ends = ends_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": CREDENTIAL_VERSION,
        "kind": "ExecCredential",
        "spec": {},
        "status": {"expirationTimestamp": ends, "token": token},
    }
