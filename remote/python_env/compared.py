"""Comparison of the environments that the ranks use, with each other and with the GPUs.

Differences that a run can live with; pure functions. Torch and NCCL are not covered: the preflight refuses a run
whose nodes have different ones.
"""

import re
from collections.abc import Mapping

from inventories.text import listed
from remote.facts import Facts
from remote.findings import Finding
from remote.python_env.backend import OLDEST_DRIVER, version

CPU_BUILD = "+cpu"
"""How torch's version ends where it was built without CUDA, by an index of PyTorch's."""
TOLD_ELSEWHERE = re.compile(r"torch|nvidia_nccl_cu\d+")


def findings(facts: Mapping[str, Facts]) -> list[Finding]:
    """Return the findings on the interpreters that the ranks use."""
    return [*_unused_gpus(facts), *_other_packages(facts)]


def _unused_gpus(facts: Mapping[str, Facts]) -> list[Finding]:
    """GPUs that torch can't use, as it was built without CUDA."""
    findings = []
    for name, fact in facts.items():
        if not fact.gpus or not (fact.torch or "").endswith(CPU_BUILD):
            continue
        driver = str(fact.gpus[0].get("driver"))
        fix = (
            f"the GPU driver {driver} is older than all that CUDA builds support: install {OLDEST_DRIVER} or newer"
            if version(driver) < version(OLDEST_DRIVER)
            else "ask for a build with CUDA: take +cpu, or the index of CPU builds, out of what is installed"
        )
        problem = f"torch {fact.torch} is built without CUDA and does not use the GPUs there"
        findings.append(Finding(node=name, problem=problem, fix=fix, fatal=False))
    return findings


def _other_packages(facts: Mapping[str, Facts]) -> list[Finding]:
    """Return the findings on environments that differ from the first: each node resolved its requirements alone."""
    held = {
        name: dict(pin.split("==", 1) for pin in fact.packages)
        for name, fact in facts.items()
        if fact.packages is not None
    }
    first, reference = next(iter(held.items()), ("", {}))
    findings = []
    for name, packages in held.items():
        differing = [
            f"{package} {packages[package]} ({reference.get(package, 'not')} there)"
            if package in packages
            else f"no {package}"
            for package in sorted(packages.keys() | reference.keys())
            if packages.get(package) != reference.get(package) and not TOLD_ELSEWHERE.fullmatch(package)
        ]
        if differing:
            findings.append(
                Finding(
                    node=name,
                    problem=f"its environment is not the one of {first}: {listed(differing)}",
                    fix="name these versions where the requirements are (package==version), so that all nodes "
                    "get them",
                    fatal=False,
                )
            )
    return findings
