"""The results of a preflight: where something is wrong, what, and the fix."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from inventories.text import joined
from remote.errors import PreflightFailed

LOOPBACK = "127."
KERNEL_LOG = "gpuctl exec -- 'dmesg || sudo dmesg'"
"""Command that prints the kernel's messages, also on machines without sudo."""
MAX_IN_FULL = 3
"""Names that count on and are written out all the same."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A problem of a node."""

    node: str
    """Its name; several (see `named`) where the same is wrong on all of them."""
    problem: str
    fix: str
    fatal: bool = True
    """False: a run can start all the same."""
    harmless: bool = False
    """True: not worth a note before every run; `doctor` reports it."""


def cannot_start(
    lines: Iterable[str], nodes: Iterable[str], *, reason: str = "", hint: str = ""
) -> PreflightFailed:
    """Return the error for a run that can't start. `reason`: a sentence before the lines; `hint`: one after them."""
    head = f"The run can't start: {reason}".rstrip()
    return PreflightFailed(
        "\n".join([head, *(f"  {line}" for line in lines), *filter(None, [hint])]), {*nodes}
    )


def named(nodes: Sequence[str]) -> str:
    """Return the nodes' names, consecutive ones as a range: `gpu-0…gpu-5, gpu-7 and head`."""
    runs: list[list[str]] = []
    for name in nodes:
        if runs and name == _next(runs[-1][-1]):
            runs[-1].append(name)
        else:
            runs.append([name])
    words = [[f"{run[0]}…{run[-1]}"] if len(run) > MAX_IN_FULL else run for run in runs]
    return joined([word for some in words for word in some])


def _next(name: str) -> str | None:
    """`gpu-8` → `gpu-9`; `None` for a name without a number."""
    stem = name.rstrip("0123456789")
    number = name[len(stem) :]
    return f"{stem}{int(number) + 1}" if number else None


def number_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: `0-61,63`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def not_the_first(values: Mapping[str, str], subject: str, fix: str, *, fatal: bool) -> list[Finding]:
    """A finding for each node whose value is not the first one's: `{subject} 2 here, and 1 on node-0`."""
    first = next(iter(values), None)
    return [
        Finding(
            node=name, problem=f"{subject} {value} here, and {values[first]} on {first}", fix=fix, fatal=fatal
        )
        for name, value in values.items()
        if first is not None and value != values[first]
    ]


def alike_together(findings: list[Finding]) -> list[Finding]:
    """The same problem on several nodes as one finding; in the order of the first."""
    together: dict[Finding, list[str]] = {}
    for finding in findings:
        nodes = together.setdefault(replace(finding, node=""), [])
        if finding.node not in nodes:
            nodes.append(finding.node)
    return [replace(finding, node=named(nodes)) for finding, nodes in together.items()]


def sentence(finding: Finding) -> str:
    """A finding as people read it."""
    return f"{finding.node}: {finding.problem}. Fix: {finding.fix}."
