"""Names of container images. Pure."""

import re

from inventories.errors import InvalidInput

EXAMPLE = "rayproject/ray:2.52.0-py311-gpu or registry.example.com/team/image:tag"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<host>(?:localhost|[\w-]+(?:\.[\w-]+)+|[\w-]+(?=:\d))(?::\d+)?/)?(?P<path>{_PART}(?:/{_PART})*)"
    r"(?P<tag>:\w[\w.-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?"
)


def full_name(image: str) -> str:
    """Return the name as nodes list it, with registry and tag: `docker.io/library/python:latest`.

    Raises InvalidInput for a text that can't be the name of an image.
    """
    match = _REFERENCE.fullmatch(image)
    if match is None:
        raise InvalidInput(
            f"'{image}' can't be the name of a container image. It should be like {EXAMPLE}, in small letters."
        )
    host, path, tag, digest = (match[part] or "" for part in ("host", "path", "tag", "digest"))
    if not host:
        host, path = "docker.io/", path if "/" in path else f"library/{path}"
    return f"{host}{path}{digest or tag or ':latest'}"
