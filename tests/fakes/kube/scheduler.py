"""Choose a pod's node, by the rules of the scheduler that gpuctl's pods use. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from tests.fakes.kube.quantity import quantity

Document = dict[str, Any]
KNOWN_AFFINITIES = {"nodeAffinity", "podAntiAffinity"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def place(pod: Document, nodes: Sequence[Document], others: Iterable[Document]) -> tuple[str | None, str]:
    """Return the node for a pod; or `None`, and the reason in the scheduler's words."""
    placed = [
        other
        for other in others
        if other["spec"].get("nodeName")
        and other.get("status", {}).get("phase") in (None, "Pending", "Running")
    ]
    reasons: Counter[str] = Counter()
    for node in nodes:
        local = [other for other in placed if other["spec"]["nodeName"] == node["metadata"]["name"]]
        why = _refusals(pod, node, local)
        if not why:
            return node["metadata"]["name"], ""
        reasons.update(why)
    report = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()))
    return None, f"0/{len(nodes)} nodes are available" + (f": {report}." if report else ".")


def _refusals(pod: Document, node: Document, here: Sequence[Document]) -> list[str]:
    spec = pod["spec"]
    labels = node["metadata"].get("labels", {})
    if node["spec"].get("unschedulable"):
        return ["node(s) were unschedulable"]
    for taint in node["spec"].get("taints", []):
        if taint["effect"] != "PreferNoSchedule" and not _tolerated(taint, spec.get("tolerations", [])):
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    selected = (spec.get("nodeSelector") or {}).items() <= labels.items()
    if not selected or not _in_affinity(spec, labels):
        return ["node(s) didn't match Pod's node affinity/selector"]
    if any(_repelled(pod, other) or _repelled(other, pod) for other in here):
        return ["node(s) didn't match pod anti-affinity rules"]
    free = {name: quantity(amount) for name, amount in node["status"]["allocatable"].items()}
    for other in here:
        for name, amount in requests(other).items():
            free[name] = free.get(name, Fraction(0)) - amount
    return [
        f"Insufficient {name}"
        for name, amount in requests(pod).items()
        if amount > free.get(name, Fraction(0))
    ]


def requests(pod: Document) -> dict[str, Fraction]:
    """Return the resources that a pod requests: the sum of its containers, or an init container's higher amount."""
    total: dict[str, Fraction] = {}
    for container in pod["spec"]["containers"]:
        for name, amount in _asked(container).items():
            total[name] = total.get(name, Fraction(0)) + amount
    for container in pod["spec"].get("initContainers") or []:
        for name, amount in _asked(container).items():
            total[name] = max(total.get(name, Fraction(0)), amount)
    return total


def _asked(container: Document) -> dict[str, Fraction]:
    resources = container.get("resources") or {}
    request = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in request.items()}


def _tolerated(taint: Document, tolerations: Iterable[Document]) -> bool:
    return any(
        toleration.get("effect") in (None, "", taint["effect"])
        and (
            (toleration.get("operator") == "Exists" and toleration.get("key") in (None, "", taint["key"]))
            or (
                toleration.get("key") == taint["key"]
                and toleration.get("value", "") == taint.get("value", "")
            )
        )
        for toleration in tolerations
    )


def _in_affinity(spec: Document, labels: dict[str, str]) -> bool:
    affinity = spec.get("affinity") or {}
    assert affinity.keys() <= KNOWN_AFFINITIES, f"not played here: {affinity.keys()}"
    terms = affinity.get("nodeAffinity", {}).get(REQUIRED, {}).get("nodeSelectorTerms")
    return terms is None or any(
        all(_matches(labels, item) for item in term.get("matchExpressions", [])) for term in terms
    )


def _matches(labels: dict[str, str], expression: Document) -> bool:
    value = labels.get(expression["key"])
    match expression["operator"]:
        case "In":
            return value in expression["values"]
        case "NotIn":
            return value not in expression["values"]
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise AssertionError(f"not played here: {expression['operator']}")


def _repelled(pod: Document, other: Document) -> bool:
    """Return whether the anti-affinity of one pod keeps the other from its node."""
    terms = (pod["spec"].get("affinity") or {}).get("podAntiAffinity", {}).get(REQUIRED, [])
    labels = other["metadata"].get("labels", {})
    for term in terms:
        assert term["topologyKey"] == "kubernetes.io/hostname", "not played here"
        selector = term["labelSelector"]
        same_place = pod["metadata"]["namespace"] == other["metadata"]["namespace"]
        if (
            same_place
            and selector.get("matchLabels", {}).items() <= labels.items()
            and all(_matches(labels, item) for item in selector.get("matchExpressions", []))
        ):
            return True
    return False
