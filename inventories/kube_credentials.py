"""The headers by which the API server of a kubeconfig knows who asks."""

import threading
import time
from typing import Any

KEPT_S = 60.0
"""Tokens hold for minutes at least, and the program that gives them out may take a second."""


class KubeCredentials:
    """Those of one `kubernetes.client.Configuration` that was just loaded.

    The client has a program asked for each call where its tokens hold less than five minutes, as OKE's do; here it is
    asked once a minute. Thread-safe.
    """

    def __init__(self, configuration: Any) -> None:  # noqa: ANN401 - the client's class has no types
        self._configuration = configuration
        self._lock = threading.Lock()
        self._asked_at = time.time()
        self._take_hook()

    def headers(self) -> dict[str, str]:
        """Return them."""
        told = self._configuration.auth_settings().values()
        return {one["key"]: one["value"] for one in told if one["in"] == "header"}

    def _take_hook(self) -> None:
        self._renew = self._configuration.refresh_api_key_hook
        if self._renew is not None:
            self._configuration.refresh_api_key_hook = self._when_due

    def _when_due(self, configuration: Any) -> None:  # noqa: ANN401
        with self._lock:
            # By the clock on the wall, which goes on while a laptop sleeps, and may be set back.
            if 0 <= time.time() - self._asked_at < KEPT_S:
                return
            self._asked_at = time.time()
            self._renew(configuration)
            self._take_hook()  # renewing puts the client's own in its place
