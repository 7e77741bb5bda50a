"""Projects that belong together, as uv and Poetry have it: a workspace's members, and sources that are folders."""

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from remote.python_env.project_files import normal_name, read_toml


def workspace_above(folder: Path, root: Path) -> Path | None:
    """The folder of the workspace that has `folder` as a member or as its own; `root`: how far up to look."""
    for place in (folder, *folder.parents):
        table = _table(read_toml(place / "pyproject.toml"))
        if table is not None and (place == folder or _has_member(table, folder.relative_to(place))):
            return place
        if place == root:
            break
    return None


def is_frame(folder: Path) -> bool:
    """Return whether a folder is not a project itself, but a workspace around its members."""
    document = read_toml(folder / "pyproject.toml")
    return "project" not in document and _table(document) is not None


def local_sources(folder: Path, root: Path) -> dict[str, Path]:
    """Return name → folder, perhaps missing, of a project's requirements in folders, and of theirs."""
    sources: dict[str, Path] = {}
    ahead = [folder]
    while ahead:
        project = ahead.pop()
        tool = read_toml(project / "pyproject.toml").get("tool", {})
        listed = {**tool.get("poetry", {}).get("dependencies", {}), **tool.get("uv", {}).get("sources", {})}
        workspace = workspace_above(project, root)
        for name, source in listed.items():
            if not isinstance(source, Mapping):
                continue
            if "path" in source:
                place = (project / source["path"]).resolve()
            elif source.get("workspace") and workspace is not None:
                place = _members(workspace).get(normal_name(name), workspace / name)
            else:
                continue
            if name not in sources and place != folder:
                sources[name] = place
                ahead.append(place)
    return sources


def _members(workspace: Path) -> dict[str, Path]:
    """The projects of a workspace, by their names."""
    table = _table(read_toml(workspace / "pyproject.toml")) or {}
    patterns = [str(pattern).strip("/") for pattern in table.get("members", ())]
    places = [place for pattern in patterns for place in sorted(workspace.glob(pattern))]
    members = [place for place in places if _has_member(table, place.relative_to(workspace))]
    names = {place: read_toml(place / "pyproject.toml").get("project", {}).get("name") for place in members}
    return {normal_name(name): place for place, name in names.items() if name}


def _table(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    table: Mapping[str, Any] | None = document.get("tool", {}).get("uv", {}).get("workspace")
    return table


def _has_member(table: Mapping[str, Any], path: PurePath) -> bool:
    def among(key: str) -> bool:
        patterns = [PurePath(str(pattern).strip("/")) for pattern in table.get(key, ())]
        return any(len(glob.parts) == len(path.parts) and path.match(str(glob)) for glob in patterns)

    return among("members") and not among("exclude")
