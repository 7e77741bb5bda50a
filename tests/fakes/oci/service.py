"""Handle one request, from bytes to bytes: authenticate, find the operation, check its parameters, perform it."""

import hashlib
import json
import secrets
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.fakes.control import Call, Control, Injected
from tests.fakes.oci import signature
from tests.fakes.oci.api import Reply, Request
from tests.fakes.oci.autoscaling import advance
from tests.fakes.oci.common import check_tags
from tests.fakes.oci.errors import ApiError, missing, not_found, unparsable
from tests.fakes.oci.models import check, conform
from tests.fakes.oci.operations import Operation, check_query
from tests.fakes.oci.router import Route, find_route
from tests.fakes.oci.store import Cloud
from tests.fakes.oci.tokens import Tokens

_BUGS = (AssertionError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The response on the wire."""

    status: int
    payload: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    code: str | None = None


class Service:
    """Answers requests, of the cloud's API and of the control interface."""

    def __init__(self, cloud: Cloud, control: Control) -> None:
        self._cloud = cloud
        self._control = control
        self._tokens = Tokens(cloud)
        control.on_advance = lambda: advance(cloud)
        self._keys = cloud.account.key_ids

    def forget(self) -> None:
        """Back to the beginning."""
        with self._cloud.lock:
            self._tokens.clear()
        self._cloud.reset()

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer a request. Raises `control.Dropped` if the connection is to be closed without a response."""
        if target.startswith("/_fake/"):
            status, shown = self._control.handle(method, target, body)
            return Answer(
                status=status,
                payload=json.dumps(shown).encode(),
                headers={"content-type": "application/json"},
            )
        split = urlsplit(target)
        route = find_route(method, split.path)
        if route is None:
            result = self._error(
                ApiError(501, "NotImplemented", f"There is no operation here for {method} {split.path}")
            )
        else:
            call = self._control.begin(route.operation.name, route.operation.mutating)
            result = self._answer(call, route, method, target, headers, body)
        return _with_id(result, headers)

    def _answer(
        self, call: Call, route: Route, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        try:
            self._control.before(call)
        except Injected as error:
            self._control.end(call, error.status, error.code)
            return self._error(ApiError(error.status, error.code, error.message))
        try:
            signature.verify(
                method=method,
                target=target,
                headers=headers,
                body=body,
                keys=self._keys,
                now=datetime.now(UTC),
            )
            request = _read(route, urlsplit(target).query, headers, body)
            result = self._perform(route, request)
            if call.fault and call.fault.kind == "duplicate":
                result = self._perform(route, request)
        except ApiError as error:
            result = self._error(error)
        except _BUGS as error:
            traceback.print_exc(file=sys.stderr)
            result = self._error(ApiError(500, "FakeIsWrong", f"{route.operation.name}: {error!r}"))
        self._control.after(call)
        self._control.end(call, result.status, result.code)
        return result

    def _perform(self, route: Route, request: Request) -> Answer:
        operation = route.operation
        with self._cloud.lock:
            self._cloud.timers.run_due()
            reply = self._tokens.replay(request)
            if reply is None:
                self._check_access(request)
                reply = route.handler(self._cloud, request)
                self._tokens.keep(request, reply)
            return _encode(operation, reply)

    def _check_access(self, request: Request) -> None:
        if self._cloud.settings.refuses(request.operation.name):
            raise not_found()
        compartment = request.one("compartmentId")
        if compartment is not None and not self._cloud.account.has_compartment(compartment):
            raise not_found()

    @staticmethod
    def _error(error: ApiError) -> Answer:
        return Answer(
            status=error.status,
            payload=json.dumps(error.body).encode(),
            headers={"content-type": "application/json", **error.headers},
            code=error.code,
        )


def _read(route: Route, query: str, headers: Mapping[str, str], body: bytes) -> Request:
    operation = route.operation
    parameters = parse_qs(query, keep_blank_values=True)
    check_query(operation, parameters)
    return Request(
        operation=operation,
        path={name: unquote(value) for name, value in route.path.items()},
        query=parameters,
        headers=dict(headers),
        body=_read_body(operation, body),
    )


def _read_body(operation: Operation, body: bytes) -> Any:
    if operation.body is None:
        return None
    if not body:
        if operation.body_required:
            raise missing(f"{operation.name} needs a body of type {operation.body}")
        return None
    try:
        document = json.loads(body)
    except ValueError:
        raise unparsable("The body is not JSON.") from None
    if not isinstance(document, dict):
        raise unparsable("The body is not a JSON object.")
    check(operation.service, document, operation.body)
    check_tags(document)
    return document


def _encode(operation: Operation, reply: Reply) -> Answer:
    if isinstance(reply.body, bytes):
        assert operation.response in ("bytes", "stream"), operation.name
        headers = {"content-type": "text/plain", **reply.headers}
        return Answer(status=reply.status, payload=reply.body, headers=headers)
    if operation.response is None:
        assert reply.body is None or reply.status != 204, operation.name
        return Answer(status=reply.status, headers=reply.headers)
    conform(operation.service, reply.body, operation.response)
    payload = json.dumps(reply.body, separators=(",", ":")).encode()
    return Answer(
        status=reply.status, payload=payload, headers={"content-type": "application/json", **reply.headers}
    )


def _with_id(answer: Answer, headers: Mapping[str, str]) -> Answer:
    """Return the request id, which begins with the client's own id."""
    first = headers.get("opc-request-id") or secrets.token_hex(16).upper()
    rest = hashlib.sha256(secrets.token_bytes(8)).hexdigest().upper()
    answer.headers["opc-request-id"] = f"{first}/{rest[:32]}/{rest[32:]}"
    return answer
