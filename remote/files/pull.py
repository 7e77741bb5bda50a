"""`pull`: a file or folder of a node comes here, as plain files within one folder."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from remote.errors import BadAnswer
from remote.files.receive import MAX_NAMES, FileReceiver, plain_parts
from remote.sessions.answers import reading
from remote.sessions.limits import of_files
from remote.sessions.session import Node
from remote.shared import frames
from remote.shared.files import digest_of


def receive(node: Node, source: str, intake: FileReceiver) -> list[str]:
    """Bring `source` into the intake's folder, which has a limit; returns the omitted files, with the reason.

    Raises NodeFailed for a missing file.
    """
    assert intake.max_bytes is not None, "a node sends a folder up to a limit"
    return take_in(node, "send", {"path": source, "max_bytes": intake.max_bytes}, intake)


def conflicts(node: Node, source: str, root: Path) -> list[Path]:
    """Return the files in `root` that `receive` would replace by other content. Raises NodeFailed as it does."""
    if not root.is_dir():
        return []
    replaced: list[Path] = []
    same_size: dict[str, Path] = {}
    for header in _described(node, source):
        path = root / header["path"]
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            if path.is_file() and not path.is_symlink() and path.stat().st_size == header["bytes"]:
                same_size[header["path"]] = path
            else:
                replaced.append(path)
    if same_size:
        digests = {header["path"]: header.get("sha256") for header in _described(node, source, same_size)}
        replaced += [path for name, path in same_size.items() if digest_of(path) != digests.get(name)]
    return sorted(replaced)


def _described(node: Node, source: str, digests: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the description of each file with a plain name that the node would send."""
    request = {"path": source, "digests": list(digests)}
    with (
        reading(node.name, "its list of files"),
        node.stream("describe", request, bounds=of_files(0)) as talk,
    ):
        for header, _ in talk.frames():
            if header.get("t") == frames.ITEM:
                with suppress(BadAnswer):
                    plain_parts(header["path"])
                    yield header


def take_in(
    node: Node,
    command: str,
    request: dict[str, Any],
    intake: FileReceiver,
    *,
    window_bytes: int | None = None,
) -> list[str]:
    """Receive the files of a command of the node's part; returns the omitted ones, with the reason."""
    skipped: list[str] = []
    done = False
    try:
        bounds = of_files(intake.max_bytes)
        with node.stream(command, request, bounds=bounds, window_bytes=window_bytes) as talk:
            for header, body in talk.frames():
                kind = header.get("t")
                if kind == frames.CHUNK:
                    intake.chunk(header["path"], int(header["offset"]), body)
                elif kind == frames.COMPLETE:
                    size, digest = int(header["bytes"]), str(header["sha256"])
                    intake.complete(header["path"], size, digest, int(header["mode"]))
                elif kind == frames.SKIPPED:
                    if len(skipped) >= MAX_NAMES:
                        raise BadAnswer(
                            f"{node.name}: named more than {MAX_NAMES} files that it does not send."
                        )
                    skipped.append(f"{header['path']}: {header['reason']}")
                elif kind == frames.DONE:
                    done = True
                else:
                    raise BadAnswer(f"{node.name}: sent {kind!r}, which is not part of a file.")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadAnswer(f"{node.name}: sent something that can't be understood: {error!r}.") from error
    finally:
        intake.discard()
    if not done:
        raise BadAnswer(f"{node.name}: ended before everything had been sent.")
    return skipped + [f"{path!r}: {why}" for path, why in intake.refused.items()]
