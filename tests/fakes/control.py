"""Control a fake cloud: settings, faults, held calls and the log of calls, all reachable by `/_fake/*`.

Both fake clouds use it. A fake passes each request through `begin`, `before`, `after` and `end`; tests steer it over
HTTP. This module knows no cloud. All times in settings are simulated seconds, of which `speed` pass in a real one.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from tests.fakes.settings import Fault, Settings, known_fields

__all__ = ["Call", "Control", "Dropped", "Fault", "Injected", "Settings"]

HOLD_LIMIT_S = 60.0
"""Real seconds after which a held call is dropped without a release."""

LONGEST_POLL_S = 60.0


class Dropped(Exception):
    """The server is to close the connection without a reply."""


class Injected(Exception):
    """The server is to answer with this error instead of performing the call."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


@dataclass(kw_only=True)
class Call:
    """A call that has arrived; `status` and `code` are filled in when it ends."""

    n: int
    operation: str
    mutating: bool
    at: float
    """Unix time."""
    fault: Fault | None = None
    status: int | None = None
    code: str | None = None

    def entry(self) -> dict[str, Any]:
        """Return the call's entry in the log."""
        kind = self.fault.kind if self.fault else None
        shown = {key: getattr(self, key) for key in ("n", "operation", "mutating", "at", "status", "code")}
        return shown | {"fault": kind}


@dataclass(kw_only=True)
class _Posted:
    fault: Fault
    seen: int = 0


@dataclass(kw_only=True, eq=False)
class _Held:
    call: Call
    phase: Literal["before", "after"]
    released: bool = False


Answer = tuple[int, Any]
Snapshot = Callable[[], dict[str, Any]]


class Control:
    """Thread-safe. `snapshot` gives the fake's part of /_fake/state, `on_reset` empties the fake.

    `on_advance` follows a calendar that was advanced. All may be set after the construction, and are called
    without any lock of ours being held.
    """

    def __init__(self, snapshot: Snapshot | None = None, on_reset: Callable[[], None] | None = None) -> None:
        self.snapshot = snapshot
        self.on_reset = on_reset
        self.on_advance: Callable[[], None] | None = None
        self._calendar_offset_s = 0.0
        self._changed = threading.Condition()
        self._settings = Settings()
        self._faults: list[_Posted] = []
        self._held: list[_Held] = []
        self._calls: list[Call] = []
        self._live: dict[str, str | None] = {}
        self._most_instances = 0
        self._most_by_cluster: dict[str, int] = {}
        self._clock_base = (time.monotonic(), 0.0)

    @property
    def settings(self) -> Settings:
        return self._settings

    def now(self) -> float:
        """Return the simulated seconds since the fake began; the count continues when `speed` changes."""
        real, simulated = self._clock_base
        return simulated + (time.monotonic() - real) * self._settings.speed

    def real_s(self, simulated_s: float) -> float:
        """Convert simulated seconds to real ones."""
        return simulated_s / self._settings.speed

    def calendar_s(self) -> float:
        """Return the Unix time by which schedules act."""
        return time.time() + self._calendar_offset_s

    def advance(self, seconds: float) -> dict[str, Any]:
        """Move the calendar of schedules forward, and nothing else. Returns the offset since the reset."""
        if seconds < 0:
            raise ValueError("seconds must be at least 0")
        with self._changed:
            self._calendar_offset_s += seconds
        if self.on_advance:
            self.on_advance()
        return {"offset_s": self._calendar_offset_s}

    # A call's way through.

    def begin(self, operation: str, mutating: bool) -> Call:
        """Log a call, decide its fault, and block for the latency."""
        with self._changed:
            call = Call(n=len(self._calls) + 1, operation=operation, mutating=mutating, at=time.time())
            self._calls.append(call)
            for posted in self._faults:
                if posted.fault.matches(operation, mutating=mutating):
                    posted.seen += 1
                    if call.fault is None and posted.fault.fires(posted.seen):
                        call.fault = posted.fault
        if self._settings.latency_s > 0:
            time.sleep(self.real_s(self._settings.latency_s))
        return call

    def before(self, call: Call) -> None:
        """Apply faults before the call is performed. Raises Dropped or Injected; blocks for a hold."""
        if call.fault is None:
            return
        if call.fault.kind == "error":
            raise Injected(call.fault.status, call.fault.code, call.fault.message)
        if call.fault.kind == "hold_before":
            self._hold(call, "before")
        if call.fault.kind in ("hold_before", "drop_before"):
            self._drop(call)

    def after(self, call: Call) -> None:
        """Apply faults after the call was performed. Raises Dropped; blocks for a hold."""
        if call.fault is None:
            return
        if call.fault.kind == "hold_after":
            self._hold(call, "after")
        if call.fault.kind in ("hold_after", "drop_after"):
            self._drop(call)

    def end(self, call: Call, status: int | None, code: str | None = None) -> None:
        """Complete a call's entry in the log."""
        with self._changed:
            call.status, call.code = status, code

    def _hold(self, call: Call, phase: Literal["before", "after"]) -> None:
        held = _Held(call=call, phase=phase)
        with self._changed:
            self._held.append(held)
            self._changed.notify_all()
            self._changed.wait_for(lambda: held.released, HOLD_LIMIT_S)
            if held in self._held:
                self._held.remove(held)

    def _drop(self, call: Call) -> None:
        self.end(call, None, "Dropped")
        raise Dropped(f"call {call.n}, {call.operation}")

    # Count the instances, for their maximum at any time.

    def launched(self, instance: str, cluster: str | None) -> None:
        """Count an instance from now on; `cluster` is its tag `gpuctl-cluster-id`."""
        with self._changed:
            self._live[instance] = cluster
            self._most_instances = max(self._most_instances, len(self._live))
            if cluster is not None:
                count = Counter(self._live.values())[cluster]
                self._most_by_cluster[cluster] = max(self._most_by_cluster.get(cluster, 0), count)

    def terminated(self, instance: str) -> None:
        """Stop counting a terminated instance."""
        with self._changed:
            self._live.pop(instance, None)

    # What tests do, over HTTP and directly.

    def handle(self, method: str, path: str, body: bytes) -> Answer:
        """Answer a request to `/_fake/*`: the status and the JSON."""
        split = urlsplit(path)
        route = f"{method} {split.path.removeprefix('/_fake/').rstrip('/')}"
        act = self._routes().get(route)
        if act is None:
            return 404, {"error": f"no such control: {route}"}
        try:
            return 200, act(json.loads(body) if body else None, parse_qs(split.query))
        except (TypeError, ValueError) as error:
            return 400, {"error": str(error)}

    def _routes(self) -> dict[str, Callable[[Any, dict[str, list[str]]], Any]]:
        return {
            "POST faults": lambda body, _: self.add_faults(body if isinstance(body, list) else [body]),
            "DELETE faults": lambda *_: self.clear_faults(),
            "GET held": lambda _, query: self.held(wait_s=float(query.get("wait_s", ["0"])[0])),
            "POST release": lambda *_: self.release(),
            "GET calls": lambda *_: self.calls(),
            "DELETE calls": lambda *_: self.forget_calls(),
            "GET address": lambda *_: "127.0.0.1",
            "GET state": lambda *_: self.state(),
            "GET settings": lambda *_: asdict(self._settings),
            "PATCH settings": lambda body, _: self.change_settings(body),
            "POST advance": lambda body, _: self.advance(float(body["seconds"])),
            "POST reset": lambda *_: self.reset(),
        }

    def add_faults(self, faults: list[dict[str, Any]]) -> dict[str, Any]:
        """Post faults: each counts the calls that arrive from now on."""
        posted = [_Posted(fault=Fault(**known_fields(Fault, fault))) for fault in faults]
        with self._changed:
            self._faults.extend(posted)
        return {"posted": len(posted)}

    def clear_faults(self) -> dict[str, Any]:
        """Forget all faults; calls that are held stay held."""
        with self._changed:
            self._faults.clear()
        return {}

    def held(self, *, wait_s: float) -> dict[str, Any]:
        """Return the call that has been held longest; wait for one if necessary."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._held), min(wait_s, LONGEST_POLL_S))
            if not self._held:
                return {"held": None}
            first = self._held[0]
            call = {"n": first.call.n, "operation": first.call.operation, "phase": first.phase}
            return {"held": call}

    def release(self) -> dict[str, Any]:
        """Drop all calls that are held."""
        with self._changed:
            held, self._held = self._held, []
            for entry in held:
                entry.released = True
            self._changed.notify_all()
        return {"released": len(held)}

    def calls(self) -> dict[str, Any]:
        """Return the log, in the order of arrival."""
        with self._changed:
            return {"calls": [call.entry() for call in self._calls]}

    def forget_calls(self) -> dict[str, Any]:
        """Empty the log and begin to number at 1 again."""
        with self._changed:
            self._calls = []
        return {}

    def state(self) -> dict[str, Any]:
        """Return the fake's state, with the maximum number of instances at any time."""
        shown = self.snapshot() if self.snapshot else {"instances": [], "resources": []}
        with self._changed:
            peaks = {"most_instances": self._most_instances, "most_by_cluster": dict(self._most_by_cluster)}
        return peaks | shown

    def change_settings(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Replace some settings; returns all."""
        with self._changed:
            changed = replace(self._settings, **known_fields(Settings, changes))
            self._clock_base = (time.monotonic(), self.now())
            self._settings = changed
        return asdict(changed)

    def reset(self) -> dict[str, Any]:
        """Restore the initial state, in the fake as well."""
        self.clear_faults()
        self.release()
        if self.on_reset:
            self.on_reset()
        with self._changed:
            self._calls = []
            self._calendar_offset_s = 0.0
            self._live.clear()
            self._most_instances = 0
            self._most_by_cluster = {}
        self.change_settings(asdict(Settings()))
        return {}
