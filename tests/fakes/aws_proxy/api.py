"""Answer one request, by the proxy's own code or by moto: the caller, the service, the operation."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from tests.fakes.aws_proxy import (
    addresses,
    eks,
    eks_wire,
    endpoints,
    groups,
    iam,
    images,
    instance_calls,
    interfaces,
    lag,
    nat,
    network,
    scaling,
    services,
    shapes,
    tags,
    templates,
    volumes,
    wire,
)
from tests.fakes.aws_proxy.errors import ApiError, dry_run, not_found, unauthorized
from tests.fakes.aws_proxy.filters import matching, page
from tests.fakes.aws_proxy.run import fingerprint, mismatch, run_instances
from tests.fakes.aws_proxy.world import World

ACCESS_KEY = "AKIAFAKEGPUCTL000001"
SECRET_KEY = "not-a-secret-of-anybody"

READING = ("Describe", "Get", "List", "Search", "Lookup")
TOKEN_LENGTH = 64

_CREDENTIAL = re.compile(r"Credential=([^/]+)/[^/]+/([^/]+)/([^/]+)/aws4_request")

Params = dict[str, Any]
Reply = tuple[int, str, bytes]
"""Status, content type, body."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to a service. `access_key` is `None` if the request is not signed."""

    service: str
    region: str
    operation: str
    method: str
    path: str
    query: str
    form: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    access_key: str | None

    @property
    def mutating(self) -> bool:
        """Return whether the request may change anything."""
        return not self.operation.startswith(READING) and self.form.get("DryRun", "").lower() != "true"


def read(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Request:
    """Parse a raw request; header names are in lower case."""
    path, _, query = path.partition("?")
    form = dict(parse_qsl(query, keep_blank_values=True))
    is_json = "json" in headers.get("content-type", "")
    if not is_json and path == "/":
        form |= dict(parse_qsl(body.decode(), keep_blank_values=True))
    signed = headers.get("authorization", "") or f"Credential={form.get('X-Amz-Credential', '')}"
    result = _CREDENTIAL.search(signed)
    algorithm = headers.get("authorization", form.get("X-Amz-Algorithm", ""))
    key, region, service = result.groups() if result else (None, "us-east-1", "ec2")
    target = headers.get("x-amz-target", "")
    operation = target.rpartition(".")[2] or form.get("Action", "")
    if service == "eks":
        operation = eks_wire.operation_of(method, path)
    return Request(
        service=service,
        region=region,
        operation=operation,
        method=method,
        path=path,
        query=query,
        form=form,
        headers=headers,
        body=body,
        access_key=key if algorithm.startswith("AWS4-HMAC-SHA256") else None,
    )


def perform(world: World, request: Request) -> Reply:
    """Perform the request. Raises ApiError."""
    _authenticate(request)
    with world.lock:
        world.advance()
        if request.service == "ec2":
            return 200, "text/xml;charset=UTF-8", _ec2(world, request)
        if request.service == "eks":
            return 200, "application/json", _eks(world, request)
        if request.service == "autoscaling":
            _check_permission(world, request)
            data = scaling.answer(world, request.region, request.operation, dict(request.form))
            return 200, "text/xml", data
        return _other(world, request)


def _eks(world: World, request: Request) -> bytes:
    _check_permission(world, request)
    if not request.operation:
        raise ApiError("NotFoundException", f"EKS has no {request.method} {request.path}.", 404)
    params = eks_wire.parse(request.operation, request.method, request.path, request.query, request.body)
    return json.dumps(eks.answer(world, request.region, request.operation, params), default=str).encode()


def _check_permission(world: World, request: Request) -> None:
    if any(fnmatchcase(request.operation, denied) for denied in world.extra.denied):
        action = f"{request.service}:{request.operation}"
        raise ApiError("AccessDeniedException", f"User is not authorized to perform: {action}", 403)


def _authenticate(request: Request) -> None:
    if request.access_key == ACCESS_KEY:
        return
    if request.service == "ec2":
        text = "AWS was not able to validate the provided access credentials"
        raise ApiError("AuthFailure", text, 401)
    code, status = (
        ("InvalidClientTokenId", 403) if request.service == "sts" else ("UnrecognizedClientException", 400)
    )
    raise ApiError(code, "The security token included in the request is invalid.", status)


def _other(world: World, request: Request) -> Reply:
    if "json" in request.headers.get("content-type", ""):
        if any(fnmatchcase(request.operation, denied) for denied in world.extra.denied):
            raise ApiError("AccessDeniedException", f"User is not authorized to perform {request.operation}.")
        params = json.loads(request.body or b"{}")
        local = services.answer(world, request.service, request.operation, request.region, params)
        if local is not None:
            return 200, "application/x-amz-json-1.1", json.dumps(local).encode()
    elif request.service == "iam":
        _check_permission(world, request)
        iam.know_policies()
    status, headers, data = world.moto.raw(
        request.service, request.region, dict(request.headers), request.body
    )
    if status >= 400 and data.startswith(b"{"):
        result = json.loads(data)
        message = result.get("message") or result.get("Message") or ""
        raise ApiError(result.get("__type", "").rpartition("#")[2], message, status)
    return status, headers.get("content-type", "text/xml"), data


def _ec2(world: World, request: Request) -> bytes:
    model = wire.operation(request.operation)
    params = wire.parse(model, request.form)
    if any(fnmatchcase(request.operation, denied) for denied in world.extra.denied):
        raise unauthorized(request.operation)
    tags.check(request.operation, params)
    lag.check_use(world, request.operation, params)
    token = params.get("ClientToken")
    if token is not None and not (0 < len(token) <= TOKEN_LENGTH and token.isascii()):
        raise ApiError(
            "InvalidParameterValue",
            f"Value ({token}) for parameter clientToken is invalid: 1 to 64 ASCII characters.",
        )
    if token is None or request.operation == "RunInstances" or params.get("DryRun"):
        return _once(world, request, model, params)
    return _with_token(world, request, model, params)


def _with_token(world: World, request: Request, model: Any, params: Params) -> bytes:
    """Return the earlier response for the same token and parameters, without a second action."""
    key = (request.operation, request.region, params["ClientToken"])
    mark = fingerprint(params)
    if key in world.tokens:
        used_for, answer = world.tokens[key]
        if used_for != mark:
            raise mismatch()
        return answer
    answer = _once(world, request, model, params)
    world.tokens[key] = (mark, answer)
    return answer


def _once(world: World, request: Request, model: Any, params: Params) -> bytes:
    if params.get("DryRun") and request.operation.startswith(READING):
        raise dry_run()
    if local := OWN.get(request.operation):
        return wire.result_xml(model, local(world, request.region, params))
    if guard := network.GUARDS.get(request.operation):
        guard(world, request.region, params)
    if params.get("DryRun"):
        raise dry_run()
    lag.check(world, request.region, request.operation, params)
    data = world.moto.ec2(request.region, dict(request.form))
    network.tidy(world, request.region, request.operation, params)
    lag.created(world, request.operation, data)
    if request.operation == "DescribeRouteTables":
        data = _with_other_routes(world, model, data)
    return lag.without_new(world, request.operation, data)


def _with_other_routes(world: World, model: Any, data: bytes) -> bytes:
    """Add the routes that moto does not know to a view of route tables."""
    if not any(thing.kind in (nat.KIND, endpoints.KIND) for thing in world.things.values()):
        return data
    result = world.moto.result(model.name, data)
    nat.mark_blackholes(world, result)
    endpoints.add_routes(world, result)
    return wire.result_xml(model, result)


def _describe_images(world: World, region: str, params: Params) -> dict[str, Any]:
    settings = world.control.settings
    result = [image for image in images.of_region(region) if not settings.lacks_image(image["Name"])]
    for name in params.get("ImageIds", []):
        if all(image["ImageId"] != name for image in result):
            raise not_found("image", name)
    expected, owners = params.get("ImageIds"), params.get("Owners")
    chosen = [
        image
        for image in result
        if (not expected or image["ImageId"] in expected)
        and (not owners or {image["OwnerId"], image["ImageOwnerAlias"]} & set(owners))
    ]
    items, token = page(matching(chosen, params.get("Filters", []), images.FILTERS), params)
    return {"Images": items, "NextToken": token}


OWN: dict[str, Callable[[World, str, Params], dict[str, Any]]] = {
    "AllocateAddress": addresses.allocate,
    "CancelSpotInstanceRequests": groups.cancel_spot,
    "CreateLaunchTemplate": templates.create,
    "CreateNatGateway": nat.create,
    "CreateNetworkInterface": interfaces.create,
    "CreatePlacementGroup": groups.create_placement_group,
    "CreateTags": tags.create,
    "CreateVolume": volumes.create,
    "CreateVpcEndpoint": endpoints.create,
    "DeleteLaunchTemplate": templates.delete,
    "DeleteNatGateway": nat.delete,
    "DeleteNetworkInterface": interfaces.delete,
    "DeletePlacementGroup": groups.delete_placement_group,
    "DeleteTags": tags.delete,
    "DeleteVolume": volumes.delete,
    "DeleteVpcEndpoints": endpoints.delete,
    "DescribeAddresses": addresses.describe,
    "DescribeImages": _describe_images,
    "DescribeInstanceAttribute": instance_calls.describe_attribute,
    "DescribeInstanceTypeOfferings": shapes.describe_offerings,
    "DescribeInstances": instance_calls.describe,
    "DescribeLaunchTemplates": templates.describe,
    "DescribeNatGateways": nat.describe,
    "DescribeNetworkInterfaces": interfaces.describe,
    "DescribePlacementGroups": groups.describe_placement_groups,
    "DescribeSpotInstanceRequests": groups.describe_spot,
    "DescribeSpotPriceHistory": shapes.describe_spot_prices,
    "DescribeTags": tags.describe,
    "DescribeVolumes": volumes.describe,
    "DescribeVpcEndpoints": endpoints.describe,
    "GetConsoleOutput": instance_calls.console_output,
    "GetEbsDefaultKmsKeyId": volumes.default_key,
    "ModifyInstanceAttribute": instance_calls.modify_attribute,
    "ModifyVpcEndpoint": endpoints.modify,
    "ReleaseAddress": addresses.release,
    "RunInstances": run_instances,
    "TerminateInstances": instance_calls.terminate,
}
"""Operations that moto does not see. Operations that change something check DryRun themselves, after their other
checks."""


QUERY = {
    "sts": "https://sts.amazonaws.com/doc/2011-06-15/",
    "iam": "https://iam.amazonaws.com/doc/2010-05-08/",
    "autoscaling": scaling.XMLNS,
    "elasticloadbalancing": "http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/",
}
"""XML namespaces of services whose responses are XML with a result."""


def error(service: str, status: int, code: str, message: str) -> Reply:
    """Return a refusal in the service's wording."""
    if service == "ec2":
        return status, "text/xml;charset=UTF-8", wire.error_xml(code, message)
    if service in QUERY:
        text = (
            f'<ErrorResponse xmlns="{QUERY[service]}"><Error><Type>Sender</Type>'
            f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>"
            "<RequestId>00000000-0000-0000-0000-000000000000</RequestId></ErrorResponse>"
        )
        return status, "text/xml", text.encode()
    return status, "application/x-amz-json-1.1", json.dumps({"__type": code, "message": message}).encode()
