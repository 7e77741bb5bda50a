"""Calls to an API server: objects as plain JSON, refusals as errors of this package.

Every call may be made again: objects are applied by the server itself, under the field manager `gpuctl`.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
import urllib3.exceptions
import yaml
from kubernetes import config

from inventories.kube_context import UNREADABLE, KubeContext, api_client, kube_context, kubeconfig_files
from inventories.kube_plugin import PluginFailed
from inventories.text import did_you_mean
from provision.errors import BadCredentials, CloudError, Denied, Gone, Throttled, Unclear, UnknownProfile
from provision.retries import Retry
from provision.waiting import Clock, SystemClock

FIELD_MANAGER = "gpuctl"
PAGE = 500
"""Objects in one answer of the server."""
TIMEOUT_S = 20.0
UNCLEAR_FOR_S = 30.0
"""Longest silence of a server before an error."""


@dataclass(frozen=True)
class Kind:
    """A kind of objects, with its path on the server."""

    version: str
    """`v1`, or the group and the version: `ray.io/v1`."""
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group. Empty: the core group."""
        return self.version.partition("/")[0] if "/" in self.version else ""

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """Return the path of an object, or of all. `namespace`: `None` for all namespaces."""
        parts = [f"/{'apis' if self.group else 'api'}/{self.version}"]
        parts += ["namespaces", namespace] if self.namespaced and namespace else []
        return "/".join([*parts, self.plural, *([name] if name else [])])


NAMESPACE = Kind("v1", "namespaces", namespaced=False)
NODE = Kind("v1", "nodes", namespaced=False)
POD = Kind("v1", "pods")
SECRET = Kind("v1", "secrets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "networkpolicies")
EVENT = Kind("v1", "events")
QUOTA = Kind("v1", "resourcequotas")
RAY_CLUSTER = Kind("ray.io/v1", "rayclusters")
CRD = Kind("apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False)
ACCESS_REVIEW = Kind("authorization.k8s.io/v1", "selfsubjectaccessreviews", namespaced=False)


class Api:
    """The API server that a context of a kubeconfig names."""

    def __init__(self, kubeconfig: KubeContext, context: str, clock: Clock | None = None) -> None:
        self._kubeconfig = kubeconfig
        self._settings = kubeconfig.configuration()
        self._client = api_client(self._settings)
        self.context = context
        self.server = str(self._settings.host)
        self.verified = bool(self._settings.verify_ssl)
        """Whether the server has to show a certificate that is known here."""
        self._retry = Retry(clock=clock or SystemClock(), unclear_for_s=UNCLEAR_FOR_S)

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """Return the object. `None`: not found."""
        try:
            return self._call("GET", kind.path(namespace, name))
        except Gone:
            return None

    def list(self, kind: Kind, namespace: str | None = None, **query: str) -> list[dict[str, Any]]:
        """Return all objects. `query`: `labelSelector`, `fieldSelector`. Raises Gone for an unknown kind."""
        objects: list[dict[str, Any]] = []
        parameters = {**query, "limit": str(PAGE)}
        while True:
            answer = self._call("GET", f"{kind.path(namespace)}?{urlencode(parameters)}")
            objects += answer.get("items") or ()
            token = (answer.get("metadata") or {}).get("continue")
            if not token:
                return objects
            parameters["continue"] = token

    def apply(self, kind: Kind, document: Mapping[str, Any]) -> dict[str, Any]:
        """Create the object, or set the fields of the document."""
        metadata = document["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"])
        return self._call(
            "PATCH",
            f"{path}?fieldManager={FIELD_MANAGER}&force=true",
            document,
            media_type="application/apply-patch+yaml",
        )

    def label(self, kind: Kind, name: str, namespace: str, labels: Mapping[str, str | None]) -> None:
        """Set labels of another maker's object. `None` removes a label. Raises Gone."""
        document = {"metadata": {"labels": dict(labels)}}
        self._call("PATCH", kind.path(namespace, name), document, media_type="application/merge-patch+json")

    def create(self, kind: Kind, document: Mapping[str, Any], namespace: str | None = None) -> dict[str, Any]:
        """Send an object that asks a question, such as an access review. Returns it with the answer."""
        return self._call("POST", kind.path(namespace), document)

    def delete(self, kind: Kind, name: str, namespace: str | None = None) -> None:
        """Delete the object, if it exists, with the objects that it owns."""
        with suppress(Gone):
            self._call("DELETE", kind.path(namespace, name), {"propagationPolicy": "Background"})

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _call(
        self, method: str, path: str, body: object = None, *, media_type: str = "application/json"
    ) -> dict[str, Any]:
        return self._retry.call(lambda: self._once(method, path, body, media_type), again=True)

    def _once(self, method: str, path: str, body: object, media_type: str) -> dict[str, Any]:
        headers = {
            "Accept": "application/json",
            "Content-Type": media_type,
            **self._kubeconfig.headers(),
        }
        try:
            answer = self._client.rest_client.pool_manager.request(
                method,
                self.server + path,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=TIMEOUT_S,
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            # Without the names of Python's objects.
            reason = str(getattr(error, "reason", None) or error).rpartition(">: ")[2].rstrip(".")
            raise Unclear(
                f"The API server {self.server} (context {self.context}) does not answer: "
                f"{reason or type(error).__name__}.",
                operation=f"{method} {path}",
            ) from error
        try:
            document = json.loads(answer.data or b"{}")
        except ValueError:
            document = {}
        if not isinstance(document, dict):
            document = {}
        if answer.status < 400:
            return document
        raise refused(
            answer.status,
            document,
            self.context,
            operation=f"{method} {path}",
            failure=self._kubeconfig.failure(),
            anonymous=not self._kubeconfig.has_credentials(),
        )


def refused(
    status: int,
    document: Mapping[str, Any],
    context: str,
    *,
    operation: str,
    failure: str = "",
    anonymous: bool = False,
) -> CloudError:
    """Return the error for an answer of the server, whose message names the verb and the kind.

    `failure`: reason why the credential plug-in gave no newer credentials. `anonymous`: without credentials.
    """
    message = str(document.get("message") or f"status {status}")
    reason = str(document.get("reason") or status)
    if status in (401, 403) and anonymous:
        return BadCredentials(
            f"The context {context} of your kubeconfig has no credentials: its user has no token, no certificate and "
            f"no credential plug-in. The API server refuses: {message}. Have its provider write the kubeconfig "
            "again.",
            operation=operation,
            code=reason,
        )
    if status == 401 and failure:
        return BadCredentials(failure, operation=operation, code=reason)
    if status == 401:
        return BadCredentials(
            f"The cluster of context {context} does not take your credentials: {message}. Log in again, or use those "
            "of somebody whom it lets in.",
            operation=operation,
            code=reason,
        )
    kinds: dict[int, type[CloudError]] = {403: Denied, 404: Gone, 429: Throttled}
    error = kinds.get(status, Unclear if status >= 500 else CloudError)
    return error(f"The API server of context {context} refuses: {message}.", operation=operation, code=reason)


def connect(context: str | None, *, kubeconfig: Path | None = None, clock: Clock | None = None) -> Api:
    """Return the API server of a context (`None`: the current one), without a request.

    `kubeconfig`: `None` for the files in $KUBECONFIG, or `~/.kube/config`. Raises UnknownProfile for a context that
    the kubeconfig lacks, BadCredentials for one that can't be used.
    """
    files = kubeconfig_files(kubeconfig)
    contexts: list[Any] = []
    current: dict[str, Any] = {}
    try:
        contexts, current = config.list_kube_config_contexts(files)
    except yaml.YAMLError as error:
        raise BadCredentials(f"The kubeconfig {files} is no YAML: {error}.") from error
    except config.ConfigException as error:
        # A file without a current context is usable with a named one.
        if context is not None and "current-context" in str(error):
            contexts = [{"name": context}]
        else:
            raise BadCredentials(
                f"No cluster of Kubernetes is known here: {str(error).rstrip('.')}. Have its provider write a "
                "kubeconfig (aws eks update-kubeconfig, oci ce cluster create-kubeconfig), or name the file in "
                "KUBECONFIG."
            ) from error
    name = context or str(current["name"])
    known = [str(entry["name"]) for entry in contexts]
    if name not in known:
        near = did_you_mean(name, known) or "."
        raise UnknownProfile(f"Your kubeconfig has no context '{name}'{near} It has {', '.join(known)}.")
    try:
        made = Api(kube_context(files, name), name, clock)
    except PluginFailed as error:
        raise BadCredentials(str(error)) from error
    except UNREADABLE as error:
        raise BadCredentials(f"The context {name} of your kubeconfig can't be used: {error}.") from error
    if not made.verified:
        # The kubeconfig switched the check off on purpose; a warning for each request would not help.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return made
