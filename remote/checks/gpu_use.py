"""A check that a run can use the GPUs of its machines, and does not fall back to their CPUs. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from inventories.text import plural
from remote.checks.readiness import driver_problem, driver_state
from remote.facts import Facts
from remote.findings import KERNEL_LOG, Finding, alike_together, cannot_start, sentence
from remote.shared.constants import VISIBLE

ON_CPUS = "To run on the CPUs all the same: --device cpu"


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Knowledge of a cluster's GPUs in addition to its machines' own facts."""

    gpus: Mapping[str, int] = field(default_factory=dict)
    """Machine's name → GPUs that its shape has, or that it had when `up` ended. Not there: not known."""
    local: bool = False
    """Whether the machines are local hosts: a laptop or a container may have GPUs that nobody wants to use."""


def check(facts: Mapping[str, Facts], expected: Expected, *, env_names: Collection[str] = ()) -> None:
    """Raise PreflightFailed where machines have GPUs that are all unusable, with each machine and its fix.

    `env_names`: names of the variables that the user sets for the ranks.
    """
    fatal = [finding for finding in findings(facts, expected, env_names=env_names) if finding.fatal]
    if fatal:
        raise cannot_start(
            map(sentence, alike_together(fatal)),
            (finding.node for finding in fatal),
            reason="there are GPUs, and it would use CPUs.",
            hint=ON_CPUS,
        )


def findings(
    facts: Mapping[str, Facts], expected: Expected, *, env_names: Collection[str] = ()
) -> list[Finding]:
    """GPUs that can't be used. Where some of a machine's can, and on local hosts, a run can start all the same."""
    problems = []
    for name, fact in facts.items():
        count = expected.gpus.get(name, 0)
        problem = (
            _some_missing(name, fact, count) if fact.gpus else _none_usable(name, fact, count, env_names)
        )
        if problem is not None and expected.local and problem.fatal:
            problem = replace(
                problem,
                problem=f"{problem.problem}; the run uses the CPUs",
                fix="none is needed for CPUs. For GPUs, see that nvidia-smi lists them on this computer, and make "
                "at most as many local hosts as it has",
                fatal=False,
            )
        problems += [problem] if problem else []
    return problems


def _some_missing(name: str, fact: Facts, expected: int) -> Finding | None:
    """Return the finding for a machine that lacks some of its expected GPUs."""
    state = driver_state(fact.driver)
    if state in ("partial", "fabric") and (problem := driver_problem(fact.driver)):
        return Finding(node=name, problem=f"it has {problem[0]}", fix=problem[1], fatal=state == "fabric")
    if fact.driver.listed < expected:
        return Finding(
            node=name,
            problem=f"nvidia-smi lists {fact.driver.listed} of the {expected} GPUs that it should have",
            fix=f"{KERNEL_LOG} shows what the kernel says of the others (lines with NVRM and Xid); "
            "reboot or replace the machine",
            fatal=False,
        )
    return None


def _none_usable(name: str, fact: Facts, expected: int, env_names: Collection[str]) -> Finding | None:
    """Return the finding for a machine that has GPUs of which it can use no GPU."""
    if fact.driver.listed:
        if VISIBLE in env_names:
            return None  # the ranks get a value of the user's own
        return Finding(
            node=name,
            problem=f"{VISIBLE} is set there, and hides {plural(fact.driver.listed, 'NVIDIA GPU')}",
            fix=f"take it out of what sets it there (/etc/environment), or give your own: --env {VISIBLE}=0",
        )
    if problem := driver_problem(fact.driver):
        return Finding(node=name, problem=f"it has {problem[0]}", fix=problem[1])
    if expected:
        output = f": {fact.driver.smi_said.splitlines()[0]}" if fact.driver.smi_said else ""
        return Finding(
            node=name,
            problem=f"it should have {plural(expected, 'NVIDIA GPU')}, and none is on its bus{output}",
            fix=f"{KERNEL_LOG} shows what the kernel says of them (lines with NVRM and Xid); reboot or "
            "replace the machine",
        )
    return None
