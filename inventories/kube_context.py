"""What a context of a kubeconfig says: where its API server is, and who asks it."""

import os
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config
from urllib3.connection import HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool
from urllib3.util.ssl_ import create_urllib3_context

KEPT_S = 60.0
"""Tokens hold for minutes at least, and the program that gives them out may take a second."""
AGAIN_S = 2.0
"""What is told by nobody is asked for again after so long."""
UNREADABLE = (config.ConfigException, yaml.YAMLError, OSError)
MOST_AT_ONCE = 64
"""Connections that a client keeps."""


class KubeContext:
    """One context of kubeconfig files, read anew once a minute and where a file has changed. Thread-safe.

    So a program that gives out tokens is asked once for all pods. The client itself would ask it for each call where
    they hold less than five minutes, as OKE's do, and would never read a file with a token again.
    """

    def __init__(self, files: str, name: str | None) -> None:
        self._files, self._name = files, name
        self._lock = threading.Lock()
        self._known: Any = None
        self._changed_at: tuple[int | None, ...] = ()
        self._good_until = 0.0

    def configuration(self) -> Any:  # noqa: ANN401 - the client's class has no types
        """Return the client's `Configuration`, which nobody may change.

        Raises one of UNREADABLE where the files can't be read and have not been yet.
        """
        with self._lock:
            changed_at = tuple(_changed_at(path) for path in self._files.split(os.pathsep))
            # By the clock on the wall, which goes on while a laptop sleeps, and may be set back.
            if 0 <= self._good_until - time.time() <= KEPT_S and changed_at == self._changed_at:
                return self._known
            try:
                now = self._read()
            except UNREADABLE:
                if self._known is None:
                    raise
                return self._known  # somebody is just writing it
            # A program that failed is no reason to forget what it gave before; it is asked again soon.
            if _tells_who(now) or changed_at != self._changed_at:
                self._known, self._changed_at = now, changed_at
            self._good_until = time.time() + (KEPT_S if _tells_who(now) else AGAIN_S)
            return self._known

    def headers(self) -> dict[str, str]:
        """Return the headers of a request that tell who asks."""
        return headers_of(self.configuration())

    def _read(self) -> Any:  # noqa: ANN401
        settings = client.Configuration()
        settings.retries = False
        settings.connection_pool_maxsize = MOST_AT_ONCE
        config.load_kube_config(self._files, context=self._name, client_configuration=settings)
        settings.refresh_api_key_hook = None
        return settings


_contexts: dict[tuple[str, str | None], KubeContext] = {}


def kube_context(files: str, name: str | None) -> KubeContext:
    """Return the context of that name; None: the current one. The same one for all who ask."""
    return _contexts.setdefault((files, name), KubeContext(files, name))


def kubeconfig_files(own: Path | None) -> str:
    """Return the files to read: one of a cluster's own, else those that $KUBECONFIG names, or `~/.kube/config`."""
    # The client itself looks at the variable once, when it is imported.
    return str(own) if own else os.environ.get("KUBECONFIG") or "~/.kube/config"


class _Connection(HTTPSConnection):
    """One with a context of its own: threads must not set up a shared one at the same time."""

    def connect(self) -> None:
        """As any; not strict."""
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
    """Have it take an authority that tells no identifier of its key, which EKS's do not, and return it.

    From Python 3.13 on, contexts ask for all that RFC 5280 does.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def headers_of(settings: Any) -> dict[str, str]:  # noqa: ANN401
    """Return those headers by a `Configuration`."""
    told = settings.auth_settings().values()
    return {one["key"]: one["value"] for one in told if one["in"] == "header"}


def _tells_who(settings: Any) -> bool:  # noqa: ANN401
    return bool(settings.api_key or settings.cert_file)


def _changed_at(path: str) -> int | None:
    try:
        return Path(path).expanduser().stat().st_mtime_ns
    except OSError:
        return None
