"""The packages that the sent wheels lack, all of them: uv names one at a time, and is asked again without it."""

import platform
import re
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from remote.node.environments import build_lock

MAX_LISTED = 300
"""Things that are looked for."""
LEFT_OUT = "left-out.txt"
LACKS = (
    r"([\w.-]+)(?:\[[^]]*\])?\S* was not found in the provided package locations",
    r"(?i:there (?:is|are) no versions? of) ([\w.-]+)",
    r"only ([\w.-]+)(?:\[[^]]*\])?[^\s,]* is available",
    r"([\w.-]+)==\S+ has no (?:wheels with|usable wheels)",
)
"""How uv says that it does not have something, the name in brackets."""
NAMED_GLIBCS = (17, 24, 27, 28, 31, 34, 35, 39)
"""Minor versions of glibc 2 that wheels are built for."""


def missing(
    uv: str, arguments: List[str], folder: Path, environment: Dict[str, str], caller: build_lock.Caller
) -> List[str]:
    """The requirements that no wheel meets, as they were asked for, of an installation that has failed.

    The requirements of a missing package are not known. Empty where uv's words do not tell.
    """
    by_name = {}  # type: Dict[str, str]
    while len(by_name) < MAX_LISTED:
        lines = ["{} ; python_version < '0'\n".format(name) for name in by_name]
        (folder / LEFT_OUT).write_text("".join(lines), encoding="utf-8")
        again = [uv, *arguments, "--dry-run", "--override", LEFT_OUT]
        code, tail = build_lock.run(again, folder, environment, caller, quiet=True)
        if code == 0:
            break
        lacking = what_lacks(" ".join(line.strip() for line in tail))
        if lacking is None or lacking[0] in by_name:
            break
        by_name[lacking[0]] = lacking[1]
    return sorted(by_name.values())


def lacks(missing: List[str], python: Optional[str]) -> Dict[str, Any]:
    """Return the description of missing packages for the other side. `python`: the version; `None`: not known."""
    return {"missing": missing, "python": python, "platforms": platforms()}


def what_lacks(output: str) -> Optional[Tuple[str, str]]:
    """The name and the requirement that uv's words are about; `None` where they are about something else."""
    name = next(
        (match.group(1) for match in (re.search(pattern, output) for pattern in LACKS) if match), None
    )
    if name is None:
        return None
    requirement = re.search(r"(?:require|depends? on) ({}(?![\w.-])[^\s]*)".format(re.escape(name)), output)
    return name, requirement.group(1).rstrip(",.") if requirement else name


def platforms() -> List[str]:
    """The platforms whose wheels this node takes, as pip names them; the best first."""
    machine, (libc, version) = platform.machine(), platform.libc_ver()
    if libc != "glibc":
        return []
    minor = int(version.split(".")[1])
    fitting = [minor_version for minor_version in reversed(NAMED_GLIBCS) if minor_version <= minor]
    return ["manylinux_2_{}_{}".format(minor_version, machine) for minor_version in fitting] + [
        "manylinux2014_" + machine
    ]
