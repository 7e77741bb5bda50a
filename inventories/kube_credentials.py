"""The headers by which the API server of a kubeconfig knows who asks."""

import math
import time
from typing import Any

KEPT_S = 60.0
"""Tokens hold for minutes at least, and the program that gives them out may take a second."""


class KubeCredentials:
    """Those of one `kubernetes.client.Configuration`."""

    def __init__(self, configuration: Any) -> None:  # noqa: ANN401 - the client's class has no types
        self._configuration = configuration
        self._headers: dict[str, str] = {}
        self._asked_s = -math.inf

    def headers(self) -> dict[str, str]:
        """Return them; a program that gives them out is asked once a minute."""
        now = time.monotonic()
        if now - self._asked_s > KEPT_S:
            told = self._configuration.auth_settings().values()
            self._headers = {one["key"]: one["value"] for one in told if one["in"] == "header"}
            self._asked_s = now
        return self._headers
