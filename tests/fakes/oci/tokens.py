"""Retry tokens: a request that is repeated with its token gets the first one's answer again."""

import hashlib
import json
import time
from dataclasses import dataclass, replace
from typing import Any

from tests.fakes.oci.api import Reply, Request
from tests.fakes.oci.errors import invalid, token_invalidated
from tests.fakes.oci.store import Cloud

LIFE_S = 24 * 3600
MAX_LENGTH = 64


@dataclass(frozen=True, kw_only=True)
class _Answered:
    digest: bytes
    reply: Reply
    at: float


class Tokens:
    """The tokens of a day, by operation."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._answered: dict[tuple[str, str], _Answered] = {}

    def clear(self) -> None:
        """Forget all."""
        self._answered.clear()

    def replay(self, request: Request) -> Reply | None:
        """Return the response that the same request got before, or `None`.

        Raises InvalidatedRetryToken if the earlier request differed, or if its resource no longer exists.
        """
        token = self._token(request)
        if token is None:
            return None
        before = self._answered.get((request.operation.name, token))
        if before is None or time.monotonic() - before.at > self._cloud.control.real_s(LIFE_S):
            return None
        if before.digest != _digest(request):
            raise token_invalidated(token)
        made = before.reply.made
        if made is None:
            return before.reply
        if not made.live or self._cloud.any(made.id) is not made:
            raise token_invalidated(token)
        view: Any = {name: made.view.get(name, value) for name, value in before.reply.body.items()}
        return replace(before.reply, body=view, headers={**before.reply.headers, "etag": made.etag})

    def keep(self, request: Request, reply: Reply) -> None:
        """Remember a request that was performed."""
        if token := self._token(request):
            answered = _Answered(digest=_digest(request), reply=reply, at=time.monotonic())
            self._answered[request.operation.name, token] = answered

    @staticmethod
    def _token(request: Request) -> str | None:
        token = request.headers.get("opc-retry-token")
        if not token or not request.operation.takes_token:
            return None
        if len(token) > MAX_LENGTH:
            raise invalid(f"opc-retry-token has more than {MAX_LENGTH} characters")
        return token


def _digest(request: Request) -> bytes:
    text = json.dumps([request.path, request.query, request.body], sort_keys=True)
    return hashlib.sha256(text.encode()).digest()
