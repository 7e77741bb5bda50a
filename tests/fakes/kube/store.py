"""Store objects by kind, namespace and name, and apply an API server's changes at each write."""

import copy
import secrets
import string
import uuid
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.kube.apply import conflicts, merged
from tests.fakes.kube.schemas import problems

Document = dict[str, Any]
WHEN = "2026-11-01T00:00:00Z"
LETTERS = string.ascii_lowercase + string.digits


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A kind that is served, under its plural."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


def _of(group: str, version: str, kinds: dict[str, str], *, namespaced: bool = True) -> list[Resource]:
    return [
        Resource(group=group, version=version, plural=plural, kind=kind, namespaced=namespaced)
        for plural, kind in kinds.items()
    ]


RBAC = "rbac.authorization.k8s.io"
BUILT_IN = [
    *_of("", "v1", {"namespaces": "Namespace", "nodes": "Node"}, namespaced=False),
    *_of("", "v1", {"secrets": "Secret", "pods": "Pod", "services": "Service", "configmaps": "ConfigMap"}),
    *_of("", "v1", {"serviceaccounts": "ServiceAccount", "resourcequotas": "ResourceQuota"}),
    *_of("", "v1", {"events": "Event", "persistentvolumeclaims": "PersistentVolumeClaim"}),
    *_of("apps", "v1", {"deployments": "Deployment", "daemonsets": "DaemonSet"}),
    *_of("batch", "v1", {"jobs": "Job"}),
    *_of("networking.k8s.io", "v1", {"networkpolicies": "NetworkPolicy"}),
    *_of(RBAC, "v1", {"roles": "Role", "rolebindings": "RoleBinding"}),
    *_of(
        RBAC,
        "v1",
        {"clusterroles": "ClusterRole", "clusterrolebindings": "ClusterRoleBinding"},
        namespaced=False,
    ),
    *_of(
        "apiextensions.k8s.io",
        "v1",
        {"customresourcedefinitions": "CustomResourceDefinition"},
        namespaced=False,
    ),
]


@dataclass(kw_only=True)
class Refused(Exception):
    """An answer that is no success."""

    code: int
    reason: str
    message: str


Key = tuple[str, str | None, str]
"""Plural, namespace, name: no two groups that are served here have one plural."""


@dataclass(kw_only=True)
class Store:
    """The store of all objects. Callers hold a lock."""

    objects: dict[Key, Document] = field(default_factory=dict)
    applied: dict[Key, dict[str, Document]] = field(default_factory=dict)
    """The last document that each manager applied."""
    writes: int = 0

    def resources(self) -> list[Resource]:
        """Return the served kinds: built in, or defined by an existing CustomResourceDefinition."""
        defined = []
        for (plural, _, _), item in self.objects.items():
            if plural == "customresourcedefinitions":
                spec = item["spec"]
                names = spec["names"]
                scoped = spec["scope"] == "Namespaced"
                defined += [
                    Resource(
                        group=spec["group"],
                        version=version["name"],
                        plural=names["plural"],
                        kind=names["kind"],
                        namespaced=scoped,
                    )
                    for version in spec["versions"]
                    if version["served"]
                ]
        return BUILT_IN + defined

    def get(self, plural: str, namespace: str | None, name: str) -> Document:
        """Return the object itself, not a copy. Raises Refused."""
        try:
            return self.objects[plural, namespace, name]
        except KeyError:
            raise Refused(code=404, reason="NotFound", message=f'{plural} "{name}" not found') from None

    def listed(self, plural: str, namespace: str | None = None) -> list[Document]:
        """Objects of a kind, of one namespace or of all."""
        return [
            item
            for (kind, where, _), item in list(self.objects.items())
            if kind == plural and namespace in (None, where)
        ]

    def create(
        self, resource: Resource, namespace: str | None, document: Document, *, check: bool = True
    ) -> Document:
        """Add a new object: a checked copy, or `document` itself without `check`. Raises Refused."""
        made = copy.deepcopy(document) if check else document
        metadata = made.setdefault("metadata", {})
        if "name" not in metadata and "generateName" in metadata:
            metadata["name"] = metadata["generateName"] + "".join(secrets.choice(LETTERS) for _ in range(5))
        if not metadata.get("name"):
            raise Refused(
                code=422, reason="Invalid", message="metadata.name: Required value: name is required"
            )
        key = (resource.plural, namespace, metadata["name"])
        if key in self.objects:
            message = f'{resource.plural} "{metadata["name"]}" already exists'
            raise Refused(code=409, reason="AlreadyExists", message=message)
        if check:
            self._check(resource, namespace, made)
        if namespace is not None:
            home = self.get("namespaces", None, namespace)
            if "deletionTimestamp" in home["metadata"]:
                message = (
                    f"unable to create new content in namespace {namespace} because it is being terminated"
                )
                raise Refused(code=403, reason="Forbidden", message=message)
            metadata["namespace"] = namespace
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": WHEN, "generation": 1}
        if resource.kind == "Namespace":
            made["status"] = {"phase": "Active"}
        if resource.kind == "Pod":
            made.setdefault("status", {"phase": "Pending"})
        self.objects[key] = made
        self.touch(made)
        return made

    def apply(
        self, resource: Resource, namespace: str | None, document: Document, manager: str, *, force: bool
    ) -> Document:
        """Create the object, or change it to the fields that a manager applies. Raises Refused."""
        key = (resource.plural, namespace, document["metadata"]["name"])
        theirs = self.applied.setdefault(key, {})
        if key not in self.objects:
            made = self.create(resource, namespace, document)
        else:
            existing = self.objects[key]
            rest = {name: their for name, their in theirs.items() if name != manager}
            if not force and (result := conflicts(existing, rest, document)):
                message = f"Apply failed with {len(result)} conflict: {'; '.join(result)}"
                raise Refused(code=409, reason="Conflict", message=message)
            made = merged(existing, theirs.get(manager), document)
            self._check(resource, namespace, made)
            if made.get("spec") != existing.get("spec"):
                made["metadata"]["generation"] = existing["metadata"]["generation"] + 1
            self.objects[key] = made
            if made != existing:
                self.touch(made)
        theirs[manager] = copy.deepcopy(document)
        return made

    def touch(self, document: Document) -> None:
        """Give an object that was changed its new version."""
        self.writes += 1
        document["metadata"]["resourceVersion"] = str(self.writes)

    def delete(self, plural: str, namespace: str | None, name: str) -> Document:
        """Begin to delete an object: who has to do with it ends it. Raises Refused."""
        existing = self.get(plural, namespace, name)
        if "deletionTimestamp" not in existing["metadata"]:
            existing["metadata"]["deletionTimestamp"] = WHEN
            if plural == "namespaces":
                existing["status"]["phase"] = "Terminating"
            self.touch(existing)
        return existing

    def forget(self, key: Key) -> None:
        """Remove the object."""
        del self.objects[key]
        self.applied.pop(key, None)
        self.writes += 1

    def _check(self, resource: Resource, namespace: str | None, document: Document) -> None:
        metadata = document["metadata"]
        result = []
        if (document.get("apiVersion"), document.get("kind")) != (resource.api_version, resource.kind):
            result.append(f"it is not of {resource.api_version} {resource.kind}")
        elif metadata.get("namespace", namespace) != namespace:
            result.append(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        else:
            name = f"{resource.plural}.{resource.group}"
            definition = self.objects.get(("customresourcedefinitions", None, name))
            result += problems(document, definition)
        if result:
            message = f'{resource.kind} "{metadata.get("name")}" is invalid: {"; ".join(result)}'
            raise Refused(code=422, reason="Invalid", message=message)
