"""Facts of a project's environment; run by its interpreter, which may be any Python from 3.8 on.

    python -I within.py able BUILD_SYSTEM       can it build the project without an index, and has it pip? python -I
    within.py finish EXTRAS           take over the commands of the environment below; which ones are lacking?

The answer is one line of JSON. It imports nothing of ours.
"""

import importlib
import importlib.util
import json
import os
import re
import sys
import sysconfig
from importlib import metadata
from typing import Any, Dict, List, Tuple

PACKAGING = (
    "packaging",
    "pip._vendor.packaging",
    "setuptools._vendor.packaging",
    "setuptools.extern.packaging",
)
"""Where the library that understands requirements may be."""
OLDEST_PIP, OLDEST_SETUPTOOLS, WITHOUT_WHEEL = (21, 3), (64, 0), (70, 1)
"""The first that install editable projects of any build system; and the one from which `wheel` is not needed."""
COMMAND = """\
#!/bin/sh
'''exec' {python} "$0" "$@"
' '''
import sys
import sysconfig
from {module} import {first}
sys.exit({attr}())
"""


def main(arguments: List[str]) -> None:
    """Print the answer."""
    if arguments[0] == "able":
        answer = able(**json.loads(arguments[1]))
    else:
        _own_commands()
        names = {
            name
            for name in (distribution.metadata["Name"] for distribution in metadata.distributions())
            if name
        }
        lacks = lacking_in(purelib(), json.loads(arguments[1]))
        answer = {"lacking": lacks, "names": sorted(names), "understood": _requirements_library() is not None}
    print(json.dumps(answer))


def able(backend: str, backend_path: List[str], build_requires: List[str]) -> Dict[str, Any]:
    """Return whether the project's build system is installed, and a pip that installs editable projects."""
    setuptools = version_of("setuptools")
    needed = [name for name in build_requires if not (_name(name) == "wheel" and setuptools >= WITHOUT_WHEEL)]
    importable = bool(backend_path) or importlib.util.find_spec(backend.partition(".")[0]) is not None
    if backend.startswith("setuptools") and setuptools < OLDEST_SETUPTOOLS:
        importable = False
    return {"builds": importable and not lacking(needed), "pip": version_of("pip") >= OLDEST_PIP}


def version_of(name: str) -> Tuple[int, ...]:
    """The first two numbers of a package's version; empty, which is less than any, where it is not there."""
    try:
        return tuple(int(part) for part in re.findall(r"\d+", metadata.version(name))[:2])
    except metadata.PackageNotFoundError:
        return ()


def purelib() -> str:
    """Return the folder of the environment's own packages."""
    return sysconfig.get_path("purelib")


def lacking_in(folder: str, extras: Dict[str, List[str]]) -> List[str]:
    """List the unmet requirements of the packages in a folder. `extras`: the wanted extras by a project's name."""
    requirements = {}  # type: Dict[str, None]
    extras_of = {normal_name(project): names for project, names in extras.items()}
    for package in metadata.distributions(path=[folder]):
        for extra in ["", *extras_of.get(normal_name(package.metadata["Name"]), [])]:
            requirements.update(dict.fromkeys(lacking(package.requires or [], extra)))
    return [requirement.partition(";")[0].strip() for requirement in requirements]


def normal_name(requirement: str) -> str:
    """The name of a package, in one of the ways that it can be written."""
    return re.sub(r"[-_.]+", "-", _name(requirement)).lower()


def lacking(requirements: List[str], extra: str = "") -> List[str]:
    """Return the unmet requirements, as they are written."""
    library = _requirements_library()
    return [
        requirement
        for requirement in requirements
        if not (_is_met(requirement, extra, library) if library else _is_there(requirement))
    ]


def _requirements_library() -> Any:  # noqa: ANN401 - one of several copies of it
    for place in PACKAGING:
        try:
            return importlib.import_module(place + ".requirements")
        except ImportError:
            continue
    return None


def _is_met(text: str, extra: str, library: Any) -> bool:  # noqa: ANN401
    requirement = library.Requirement(text)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
        return True
    try:
        distribution = metadata.distribution(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    if requirement.url is None and not requirement.specifier.contains(distribution.version, prereleases=True):
        return False
    of_extras = [line for line in distribution.requires or () if "extra" in line.partition(";")[2]]
    return not any(lacking(of_extras, line) for line in requirement.extras)


def _is_there(text: str) -> bool:
    """Return whether a package of that name is installed; without the library more can't be known."""
    return "extra" in text.partition(";")[2] or version_of(_name(text)) != ()


def _name(text: str) -> str:
    return re.split(r"[^\w.-]", text.strip())[0]


def _own_commands() -> None:
    """Give the environment the commands of the packages below, which would start the interpreter below."""
    folder = os.path.join(sys.prefix, "bin")
    python = '"' + re.sub(r'(["$`\\])', r"\\\1", sys.executable) + '"'
    for package in metadata.distributions():
        for entry in package.entry_points:
            path = os.path.join(folder, entry.name)
            module, _, attr = entry.value.partition("[")[0].strip().partition(":")
            named = entry.group == "console_scripts" and os.path.basename(entry.name) == entry.name
            if not named or os.path.exists(path) or not attr:
                continue
            first = attr.partition(".")[0]
            with open(path, "w") as file:
                file.write(COMMAND.format(python=python, module=module, first=first, attr=attr))
            os.chmod(path, 0o700)


if __name__ == "__main__":
    main(sys.argv[1:])
