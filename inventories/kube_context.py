"""The context of a kubeconfig: its API server, and the credentials for it."""

import base64
import os
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger
from urllib3.connection import HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool
from urllib3.util.ssl_ import create_urllib3_context

from inventories.kube_plugin import WITHOUT_TERMINAL_S, PluginFailed, credentials
from inventories.threads import within

KEPT_S = 60.0
"""Tokens hold for minutes at least, and the program that gives them out may take a second."""
AGAIN_S = 2.0
"""Pause before the next try where credentials are missing."""
UNREADABLE = (config.ConfigException, yaml.YAMLError, OSError)
MOST_AT_ONCE = 64
"""Connections that a client keeps."""


class KubeContext:
    """A context of kubeconfig files, read anew once a minute and where a file has changed. Thread-safe.

    So a program that gives out tokens is asked once for all pods. The client itself would ask it for each call where
    they hold less than five minutes, as OKE's do, and would never read a file with a token again.
    """

    def __init__(self, files: str, name: str | None) -> None:
        self._files, self._name = files, name
        self._lock = threading.Lock()
        self._known: Any = None
        self._changed_at: tuple[int | None, ...] = ()
        self._good_until = 0.0
        self._failure = ""

    def configuration(self) -> Any:  # noqa: ANN401 - the client's class has no types
        """Return the client's `Configuration`, which nobody may change.

        Raises one of UNREADABLE where the files can't be read and have not been yet, PluginFailed for a credential
        plug-in without credentials.
        """
        with self._lock:
            changed_at = tuple(_changed_at(path) for path in self._files.split(os.pathsep))
            # By the calendar clock, which continues while a laptop sleeps, and may be set back.
            if not (0 <= self._good_until - time.time() <= KEPT_S and changed_at == self._changed_at):
                self._renew(changed_at)
            if self._known is None:
                raise PluginFailed(self._failure)
            return self._known

    def _renew(self, changed_at: tuple[int | None, ...]) -> None:
        began = time.monotonic()
        try:
            settings, self._failure = self._read(), ""
            if self._known is None or changed_at != self._changed_at or _has_credentials(settings):
                self._known = settings
        except PluginFailed as error:
            # Credentials from before the failure remain in use, but not if they come from another file.
            if changed_at != self._changed_at:
                self._known = None
            self._failure = str(error)
        except UNREADABLE:
            if self._known is None:
                raise
            return  # somebody is just writing it
        # A plug-in that hung for long is not run again at once: threads wait for it here.
        again_s = min(max(AGAIN_S, time.monotonic() - began), KEPT_S)
        self._changed_at = changed_at
        self._good_until = time.time() + (KEPT_S if not self._failure and self.has_credentials() else again_s)

    def has_credentials(self) -> bool:
        """Return whether requests have a token or a certificate."""
        return self._known is not None and _has_credentials(self._known)

    def failure(self) -> str:
        """Return why the plug-in gave no newer credentials. Empty: it did, or the context has no plug-in."""
        return self._failure

    def headers(self) -> dict[str, str]:
        """Return the headers of a request that tell who asks."""
        return headers_of(self.configuration())

    def _read(self) -> Any:  # noqa: ANN401
        settings = client.Configuration()
        settings.retries = False
        settings.connection_pool_maxsize = MOST_AT_ONCE
        merged = KubeConfigMerger(self._files)
        if merged.config is None:
            raise config.ConfigException("there is no such file, or nothing in it")
        context = str(self._name or merged.config["current-context"])
        _run_plugin(merged.config, context)
        loader = KubeConfigLoader(merged.config, active_context=context, config_persister=merged.save_changes)
        # An auth-provider asks a server, or runs a program.
        clause = f"the auth-provider of context {context} gave no credentials"
        try:
            within(WITHOUT_TERMINAL_S, lambda: loader.load_and_set(settings), what=clause)
        except TimeoutError as error:
            raise PluginFailed(
                f"In your kubeconfig, {error}. Log in again as the provider of the cluster describes it, and run the "
                "command again."
            ) from error
        settings.refresh_api_key_hook = None
        return settings


def _has_credentials(settings: Any) -> bool:  # noqa: ANN401
    return bool(settings.api_key or settings.cert_file)


def _run_plugin(document: Any, name: str) -> None:  # noqa: ANN401
    """Run the plug-in of the context's user, and put its credentials in its place. Raises PluginFailed."""
    context = document["contexts"].get_with_name(name)["context"]
    users = document.safe_get("users") and document["users"]
    entry = users.get_with_name(context.safe_get("user"), safe=True) if users else None
    if entry is None or not entry.safe_get("user"):
        return
    user = entry["user"]
    # The client takes these first.
    if not user.safe_get("exec") or any(
        user.safe_get(key) for key in ("auth-provider", "token", "tokenFile")
    ):
        return
    cluster = document["clusters"].get_with_name(context["cluster"])["cluster"]
    folder = str(Path(cluster.path).parent.absolute()) if cluster.path else None
    credential = credentials(user.value.pop("exec"), context=name, cluster=cluster.value, folder=folder)
    if credential.get("token"):
        user.value["token"] = credential["token"]
    else:
        for key, part in (("client-certificate-data", "Certificate"), ("client-key-data", "Key")):
            user.value[key] = base64.b64encode(credential[f"client{part}Data"].encode()).decode()


_contexts: dict[tuple[str, str | None], KubeContext] = {}


def kube_context(files: str, name: str | None) -> KubeContext:
    """Return the context of that name; `None`: the current one. The same one for all who ask."""
    return _contexts.setdefault((files, name), KubeContext(files, name))


def kubeconfig_files(cluster_file: Path | None) -> str:
    """Return the files to read: a cluster's own file, else the files in $KUBECONFIG, or `~/.kube/config`."""
    # The client itself looks at the variable once, when it is imported.
    return str(cluster_file) if cluster_file else os.environ.get("KUBECONFIG") or "~/.kube/config"


class _Connection(HTTPSConnection):
    """A TLS connection with a context of its own: threads must not set up a shared context at the same time."""

    def connect(self) -> None:
        """Connect without the strict checks of certificates."""
        if self.ssl_context is None:
            self.ssl_context = not_strict(create_urllib3_context())
            if not (self.ca_certs or self.ca_cert_dir or self.ca_cert_data):
                self.ssl_context.load_default_certs()
        super().connect()


class _Connections(HTTPSConnectionPool):
    ConnectionCls = _Connection


def api_client(settings: Any) -> client.ApiClient:  # noqa: ANN401
    """Return a client by a `Configuration`. It checks certificates, as strictly as `not_strict` says."""
    made = client.ApiClient(settings)
    if settings.verify_ssl:
        manager = made.rest_client.pool_manager
        manager.pool_classes_by_scheme = {**manager.pool_classes_by_scheme, "https": _Connections}
    return made


def not_strict(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make a context accept an authority without an identifier of its key, like EKS's, and return it.

    From Python 3.13 on, contexts ask for all that RFC 5280 does.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def headers_of(settings: Any) -> dict[str, str]:  # noqa: ANN401
    """Return the headers of a `Configuration` that authenticate."""
    auth_settings = settings.auth_settings().values()
    return {setting["key"]: setting["value"] for setting in auth_settings if setting["in"] == "header"}


def _changed_at(path: str) -> int | None:
    try:
        return Path(path).expanduser().stat().st_mtime_ns
    except OSError:
        return None
