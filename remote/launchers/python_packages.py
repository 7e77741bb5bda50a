"""Requirements of launchers for the nodes' Python packages."""

import platform
import re
import shlex
import sys
from collections.abc import Mapping

from remote.facts import Facts
from remote.findings import Finding, not_the_first


def same_torch(facts: Mapping[str, Facts]) -> list[Finding]:
    """Return the nodes without torch, and the ones with another version than the first."""
    versions = {name: fact.torch for name, fact in facts.items() if fact.torch}
    return [
        *(not_installed(name, fact, "torch", "torch") for name, fact in facts.items() if not fact.torch),
        *not_the_first(versions, "torch is", "install the same version on all nodes", fatal=True),
    ]


def not_installed(node: str, fact: Facts, package: str, requirement: str) -> Finding:
    """Return the finding for a package that a node's interpreter lacks."""
    fix = (
        f"have gpuctl build an environment with it: --pip {requirement}, or --requirements FILE; or name another "
        "interpreter with --python"
    )
    if (fact.python_below, fact.hostname) == (sys.executable, platform.node()):
        pip = f"{shlex.quote(sys.executable)} -m pip install {requirement}"
        fix = f"install it in that Python, which local hosts and gpuctl use: {pip}"
    return Finding(
        node=node,
        problem=f"{package} is not installed for {fact.python_below} (Python {fact.python_version})",
        fix=fix,
    )


def older(version: str, than: str) -> bool:
    """Return whether `2.9.1` is older than `2.60`, by the first two numbers only."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text)[:2]]

    return numbers(version) < numbers(than)
