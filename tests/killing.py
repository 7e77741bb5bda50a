"""A command that is killed before or after its n-th call to a fake cloud that changes something."""

from dataclasses import dataclass
from typing import Any

from clouds import CloudGpuctl
from forks import Forked

PHASES = ("before", "after")


@dataclass(frozen=True, kw_only=True)
class Point:
    """The point at which a command is killed: before or after its n-th call that changes something."""

    nth: int
    phase: str


def points_of(total: int) -> list[Point]:
    """Return all points of a command with that number of calls."""
    return [Point(nth=nth, phase=phase) for nth in range(1, total + 1) for phase in PHASES]


def calls_of(gpuctl: CloudGpuctl, words: tuple[str, ...]) -> int:
    """Count the calls that change something in an undisturbed run of the command."""
    gpuctl.cloud.forget_calls()
    gpuctl.ok(*words)
    return len(gpuctl.cloud.calls(mutating=True))


def wait_held(gpuctl: CloudGpuctl, process: Forked) -> dict[str, Any] | None:
    """Return the held call; `None` if the command ended before, or made no call for half a minute."""
    for _ in range(30):
        held = gpuctl.cloud.held(wait_s=1)
        if held is not None or process.poll() is not None:
            return held
    return None


def kill(gpuctl: CloudGpuctl, words: tuple[str, ...], point: Point) -> None:
    """Run the command and end it at that point, as a power cut would."""
    gpuctl.cloud.fault(operation="*", mutating=True, nth=point.nth, kind=f"hold_{point.phase}")
    process = gpuctl.fork(*words)
    try:
        held = wait_held(gpuctl, process)
        ended = process.poll()
        process.kill()
        out, err = process.communicate(timeout=10)
    finally:
        process.kill()
        process.wait()
    # Retries and parallel calls may differ by one between two runs of the command: then it has ended well.
    assert held is not None or ended == 0, f"not held, exit {ended}\n{out}\n{err}"
    gpuctl.cloud.release()
    gpuctl.cloud.clear_faults()
