"""The watch on a rented machine that ends it after a time without use, as the machine reports it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remote.errors import BadAnswer
from remote.sessions.session import Node

SIGNALS = ("run", "queue", "login", "gpu", "cpu", "transfer")
MIN_FRESH_S = 180.0
"""A watch whose state is older does not run: it takes a look each half minute."""


@dataclass(frozen=True, kw_only=True)
class IdleState:
    """The state of the watch on a machine."""

    running: bool
    """False: nothing ends the machine, and the other fields are old."""
    over: bool = False
    """Whether the machine had no use for its time."""
    ends_in_s: float = 0.0
    """Time until its end, without further use."""
    keep_s: float | None = None
    """Time in which `gpuctl keep` puts the end off. `None`: it does not."""
    signals: Mapping[str, bool | None]
    """Signal → whether it shows use. `None`: not known, which counts as no use, but for `login`."""
    problems: tuple[str, ...] = ()
    """Reasons why use is not known. The machine does not end with one."""


def ask(node: Node, peers: Sequence[str], keep_s: float | None = None, *, extends: bool = False) -> IdleState:
    """Return the state of a machine's watch, and name the cluster's other machines to it.

    `keep_s`: time in which the machine does not end. `None`: unchanged. `extends`: a longer time to keep stays.
    Raises BadAnswer.
    """
    body = {"peers": list(peers), "keep_s": keep_s, "extends": extends}
    return parse(node.name, node.call("idle", body, timeout_s=30))


def parse(name: str, answer: Mapping[str, Any]) -> IdleState:
    """Read a machine's answer. Raises BadAnswer."""
    try:
        watch, now_s = answer["watch"], float(answer["now_s"])
        if not watch or now_s - float(watch["at_s"]) > max(MIN_FRESH_S, 5 * float(watch["round_s"])):
            return IdleState(running=False, signals=dict.fromkeys(SIGNALS))
        keep_until_s = watch["keep_until_s"]
        return IdleState(
            running=True,
            over=bool(watch["over"]) and now_s - float(watch["at_s"]) <= 2 * float(watch["round_s"]),
            ends_in_s=max(0.0, float(watch["ends_at_s"]) - now_s),
            keep_s=None if keep_until_s is None else max(0.0, float(keep_until_s) - now_s),
            signals={
                signal: None if watch["signals"].get(signal) is None else bool(watch["signals"][signal])
                for signal in SIGNALS
            },
            problems=tuple(map(str, watch.get("problems", ()))),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadAnswer(f"{name}: no state of its idle watch that can be read.") from error
