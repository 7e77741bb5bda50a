"""Answer requests as an API server does: for an object, for a list, or for discovery."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from tests.fakes.kube.apply import merged
from tests.fakes.kube.store import BUILT_IN, Document, Refused, Resource, Store

if TYPE_CHECKING:
    from tests.fakes.kube.api import KubeApi

AUTHORIZATION = "authorization.k8s.io"
VERBS = {
    ("GET", True): "get",
    ("GET", False): "list",
    ("POST", False): "create",
    ("PATCH", True): "patch",
    ("PUT", True): "update",
    ("DELETE", True): "delete",
    ("DELETE", False): "deletecollection",
}
APPLY = "application/apply-patch+yaml"
MERGE = ("application/merge-patch+json", "application/strategic-merge-patch+json")


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request, with its path taken apart."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    document: Any
    content_type: str
    group: str = ""
    version: str = ""
    plural: str = ""
    namespace: str | None = None
    name: str | None = None
    subresource: str = ""

    @property
    def verb(self) -> str:
        """Return the verb of the request, as RBAC names it."""
        if self.subresource == "exec":
            return "create"
        return VERBS.get((self.method, self.name is not None), "")


def read_request(
    method: str, path: str, query: Mapping[str, list[str]], body: bytes, content_type: str
) -> Request:
    """Take a request apart."""
    # JSON is also YAML, and its own parser is a hundred times as fast.
    is_yaml = content_type.endswith("yaml") and not body.startswith(b"{")
    document = yaml.safe_load(body) if is_yaml else json.loads(body) if body else None
    whole: dict[str, Any] = {"method": method, "path": path, "query": query, "document": document}
    whole["content_type"] = content_type
    words = path.strip("/").split("/")
    if words[0] == "api" and len(words) > 2:
        whole |= {"version": words[1]}
        rest = words[2:]
    elif words[0] == "apis" and len(words) > 3:
        whole |= {"group": words[1], "version": words[2]}
        rest = words[3:]
    else:
        return Request(**whole)
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        whole["namespace"] = rest[1]
        rest = rest[2:]
    keys = ("plural", "name", "subresource")
    return Request(**whole, **dict(zip(keys, rest, strict=False)))


def answer(api: "KubeApi", request: Request) -> Document:
    """Carry out a request, and return the server's answer. Raises Refused."""
    if not request.plural:
        return _served(api, request.path.strip("/"))
    if request.group == AUTHORIZATION:
        return _review(api, request)
    store = api.world.store
    resource = next(
        (
            item
            for item in store.resources()
            if (item.group, item.version, item.plural) == (request.group, request.version, request.plural)
        ),
        None,
    )
    if resource is None or not request.verb:
        raise Refused(code=404, reason="NotFound", message="the server could not find the requested resource")
    _check_allowed(api, request, request.verb)
    if "watch" in request.query:
        raise Refused(code=405, reason="MethodNotAllowed", message="watch is not played here")
    if request.name is None:
        return _collection(store, resource, request)
    if request.subresource == "exec":
        return store.get(resource.plural, request.namespace, request.name)
    match request.method:
        case "GET":
            return store.get(resource.plural, request.namespace, request.name)
        case "DELETE":
            return store.delete(resource.plural, request.namespace, request.name)
        case "PUT":
            return _update(store, resource, request, request.document)
    return _patch(api, resource, request)


def _patch(api: "KubeApi", resource: Resource, request: Request) -> Document:
    store, name = api.world.store, request.name
    assert name is not None
    existing = store.objects.get((resource.plural, request.namespace, name))
    if request.content_type == APPLY:
        if not request.query.get("fieldManager"):
            raise Refused(code=400, reason="BadRequest", message="fieldManager is required for apply patch")
        if (request.document.get("metadata") or {}).get("name") != name:
            raise Refused(
                code=400, reason="BadRequest", message="the name of the object is not that of the URL"
            )
        if existing is None:
            _check_allowed(api, request, "create")
        force = request.query.get("force") == ["true"]
        manager = request.query["fieldManager"][0]
        return store.apply(resource, request.namespace, request.document, manager, force=force)
    if existing is None:
        store.get(resource.plural, request.namespace, name)
    if request.content_type not in MERGE:
        message = f"the body of the request was in an unknown format: {request.content_type}"
        raise Refused(code=415, reason="UnsupportedMediaType", message=message)
    return _update(store, resource, request, _without_nulls(merged(existing, {}, request.document)))


def _update(store: Store, resource: Resource, request: Request, document: Document) -> Document:
    """The object as it is now, but for its status, or for all but its status."""
    assert request.name is not None
    existing = store.get(resource.plural, request.namespace, request.name)
    if request.subresource == "status":
        existing["status"] = document.get("status")
    else:
        before = existing["metadata"]
        saved = {key: before[key] for key in ("uid", "creationTimestamp", "generation") if key in before}
        ending = {key: before[key] for key in ("deletionTimestamp",) if key in before}
        status = {"status": existing["status"]} if "status" in existing else {}
        existing.clear()
        existing.update(document | status)
        existing["metadata"] = document["metadata"] | saved | ending
    store.touch(existing)
    return existing


def _without_nulls(document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    return {key: _without_nulls(value) for key, value in document.items() if value is not None}


def _collection(store: Store, resource: Resource, request: Request) -> Document:
    if request.method == "POST":
        document = dict(request.document)
        if resource.kind == "Secret" and "stringData" in document:
            text = document.pop("stringData")
            encoded = {key: base64.b64encode(value.encode()).decode() for key, value in text.items()}
            document["data"] = (document.get("data") or {}) | encoded
        return store.create(resource, request.namespace, document)
    result = [
        item for item in store.listed(resource.plural, request.namespace) if _selected(item, request.query)
    ]
    if request.method == "DELETE":
        for item in result:
            store.delete(resource.plural, item["metadata"].get("namespace"), item["metadata"]["name"])
    return {
        "apiVersion": resource.api_version,
        "kind": f"{resource.kind}List",
        "metadata": {"resourceVersion": str(store.writes)},
        "items": [_item(item) for item in result] if resource in BUILT_IN else result,
    }


def _item(document: Document) -> Document:
    """Return an object as an item of a list of a built-in kind, where only the list carries the kind."""
    return {key: value for key, value in document.items() if key not in ("apiVersion", "kind")}


def _selected(document: Document, query: Mapping[str, list[str]]) -> bool:
    labels = document["metadata"].get("labels") or {}
    for term in ",".join(query.get("labelSelector", [])).split(","):
        key, sign, value = term.partition("!=" if "!=" in term else "=")
        if not term:
            continue
        if " in " in term or " notin " in term:
            raise AssertionError(f"not played here: {term}")
        if not sign:
            matches = key[1:] not in labels if key.startswith("!") else key in labels
        else:
            matches = (labels.get(key) == value.removeprefix("=")) == (sign == "=")
        if not matches:
            return False
    for term in ",".join(query.get("fieldSelector", [])).split(","):
        key, sign, value = term.partition("!=" if "!=" in term else "=")
        if term and (str(_at(document, key)) == value.removeprefix("=")) != (sign == "="):
            return False
    return True


def _at(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = (document or {}).get(key)
    return document if document is not None else ""


def _allowed(api: "KubeApi", verb: str, what: str) -> bool:
    return not {(verb, what), ("*", what), (verb, "*"), ("*", "*")} & api.denied


def _check_allowed(api: "KubeApi", request: Request, verb: str) -> None:
    subject = _spelled(request.plural, request.group, request.subresource)
    if _allowed(api, verb, subject):
        return
    resource = request.plural + (f"/{request.subresource}" if request.subresource else "")
    message = (
        f'{subject} is forbidden: User "me" cannot {verb} resource "{resource}" in API group "{request.group}" '
        + (f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope")
    )
    raise Refused(code=403, reason="Forbidden", message=message)


def _spelled(plural: str, group: str, subresource: str) -> str:
    return plural + (f".{group}" if group else "") + (f"/{subresource}" if subresource else "")


def _review(api: "KubeApi", request: Request) -> Document:
    """Answer a SelfSubjectAccessReview: whether the user has a permission."""
    if (request.method, request.plural) != ("POST", "selfsubjectaccessreviews"):
        raise Refused(code=404, reason="NotFound", message="the server could not find the requested resource")
    query = request.document["spec"]["resourceAttributes"]
    known = {"verb", "group", "resource", "subresource", "namespace", "name", "version"}
    assert query.keys() <= known, query
    subject = _spelled(query["resource"], query.get("group") or "", query.get("subresource") or "")
    allowed = _allowed(api, query["verb"], subject)
    return dict(request.document) | {"status": {"allowed": allowed} | ({} if allowed else {"reason": ""})}


def _served(api: "KubeApi", path: str) -> Document:
    """Return the documents by which clients discover the served resources."""
    resources = api.world.store.resources()
    groups = {resource.group: resource.version for resource in resources if resource.group} | {
        AUTHORIZATION: "v1"
    }
    if path == "version":
        major, minor = api.version.removeprefix("v").split(".")[:2]
        unknown = ("buildDate", "compiler", "gitCommit", "gitTreeState", "goVersion")
        report = {"major": major, "minor": minor, "gitVersion": api.version, "platform": "linux/amd64"}
        return report | dict.fromkeys(unknown, "")
    if path == "readyz":
        return {"status": "ok"}
    if path == "api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "apis":
        listed = []
        for group, version in groups.items():
            served = {"groupVersion": f"{group}/{version}", "version": version}
            listed.append({"name": group, "versions": [served], "preferredVersion": served})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    group_version = path.removeprefix("apis/").removeprefix("api/")
    result = [resource for resource in resources if resource.api_version == group_version]
    if not result:
        raise Refused(code=404, reason="NotFound", message="the server could not find the requested resource")
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": [
            {
                "name": resource.plural,
                "singularName": resource.kind.lower(),
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": ["create", "delete", "get", "list", "patch", "update"],
            }
            for resource in result
        ],
    }
