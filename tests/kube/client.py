"""Requests to an API server, as plain JSON: how the played parts of a cluster talk to it."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

Document = dict[str, Any]
PLURALS = {"StorageClass": "storageclasses"}
CLUSTER_WIDE = ("Namespace", "Node", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding")
CONTENT = {
    "apply": "application/apply-patch+yaml",
    "merge": "application/merge-patch+json",
    "": "application/json",
}


class Refused(Exception):
    """The server refuses: its status and its sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Client:
    """A user of the server. Safe for threads."""

    def __init__(self, server: str, token: str, ca_file: Path) -> None:
        self._server = server
        self._token = token
        self._pool = urllib3.PoolManager(ca_certs=str(ca_file), maxsize=8, timeout=60, retries=False)

    def call(self, method: str, path: str, body: Any = None, content: str = "", **query: str) -> Document:
        """Call the API server, and return the response. Raises Refused."""
        words = f"?{urlencode(query)}" if query else ""
        answer = self._pool.request(
            method,
            f"{self._server}{path}{words}",
            body=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": CONTENT[content]},
        )
        text = answer.data.decode()
        if answer.status >= 400:
            with suppress(ValueError, KeyError):
                text = json.loads(text)["message"]
            raise Refused(answer.status, text)
        return json.loads(text) if text.startswith("{") else {"text": text}

    def apply(self, document: Document, manager: str = "tests") -> Document:
        """Apply an object by the server."""
        path = f"{place(document)}/{document['metadata']['name']}"
        return self.call("PATCH", path, document, "apply", fieldManager=manager, force="true")

    def create(self, document: Document) -> Document:
        """Create an object."""
        return self.call("POST", place(document), document)

    def create_where_none(self, document: Document) -> None:
        """Create an object unless its name is in use."""
        try:
            self.create(document)
        except Refused as error:
            if error.status != 409:
                raise

    def set_status(self, document: Document, status: Document) -> None:
        """Replace an object's status; nothing happens where the object has gone."""
        path = f"{place(document)}/{document['metadata']['name']}/status"
        try:
            self.call("PATCH", path, {"status": status}, "merge")
        except Refused as error:
            if error.status != 404:
                raise

    def items(self, path: str, **query: str) -> list[Document]:
        """Return all objects of a list. Each gets its kind, which the list itself names only once."""
        result = self.call("GET", path, **query)
        kind = {"apiVersion": result["apiVersion"], "kind": result["kind"].removesuffix("List")}
        return [kind | item for item in result["items"]]


def place(document: Document) -> str:
    """Return the path of objects of this document's kind and namespace."""
    version, kind = document["apiVersion"], document["kind"]
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    if kind in CLUSTER_WIDE:
        return f"{root}/{plural}"
    return f"{root}/namespaces/{document['metadata']['namespace']}/{plural}"
