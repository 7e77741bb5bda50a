"""Requests that Ray cannot serve, as its scheduler writes them into a driver's log. Pure."""

import re

_UNSERVED = re.compile(
    r"No available node types can fulfill resource requests? (?:defaultdict\(<class 'float'>, )?"
    r"(?P<request>\{[^}]*\})"
)


def unserved_request(log: str) -> str:
    """Return the resources that no node has, of a log that ends with Ray's word on them; empty: it ends otherwise."""
    lines = log.rstrip().splitlines()
    match = _UNSERVED.search(lines[-1]) if lines else None
    return match["request"] if match else ""


def sentence_on(request: str, node: str, at: str | None) -> str:
    """Return the sentence on a driver that waits for such a request. `at`: where it is in the script."""
    place = f", at {at}" if at else ""
    return (
        f"The run hangs: no machine of the cluster has what the script asks Ray for, {request}. The script waits on "
        f"{node}{place}. Ask for less in @ray.remote or ScalingConfig, or add machines that have it"
    )
