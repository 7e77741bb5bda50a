"""Variables for the ranks, as they are typed: `--env K=V`, or `--env K` for its value here."""

import os
from collections.abc import Mapping

from gpuctl.errors import Usage


def variable(word: str, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Name and value. Raises Usage for what is no name, or is not set here."""
    name, equals, value = word.partition("=")
    if not name.replace("_", "a").isalnum() or name[:1].isdigit():
        raise Usage(
            f"--env {word!r} has no valid name: write --env NAME=VALUE, or --env NAME for its value here."
        )
    if equals:
        return name, value
    if name not in environ:
        raise Usage(
            f"There is no variable {name} here: set it first (export {name}=…), or write --env {name}=VALUE."
        )
    return name, environ[name]
