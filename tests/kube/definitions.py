"""KubeRay's manifests, reduced to the fields that an API server of 1.20 knows. Pure."""

from typing import Any

Document = dict[str, Any]


def for_old_server(document: Document) -> Document:
    """Return the manifests without rules in CEL and empty strings as defaults, and with explicit keys of lists."""
    made = _stripped(document)
    assert isinstance(made, dict)
    if made["kind"] == "Service":
        for port in made["spec"]["ports"]:
            port.setdefault("protocol", "TCP")
    return made


def _stripped(one: Any) -> Any:
    if isinstance(one, list):
        return [_stripped(part) for part in one]
    if not isinstance(one, dict):
        return one
    made = {
        key: _stripped(value)
        for key, value in one.items()
        if key != "x-kubernetes-validations" and not (key == "default" and value == "")
    }
    keys = made.get("x-kubernetes-list-map-keys")
    if isinstance(keys, list):
        items = made["items"]
        required = set(items.get("required", []))
        missing = [key for key in keys if key not in required and "default" not in items["properties"][key]]
        if missing:
            items["required"] = [*items.get("required", []), *missing]
    return made
