"""`pull`: a file or folder of a node comes here, as plain files within one folder."""

from typing import Any

from remote.errors import BadAnswer
from remote.files.receive import MAX_NAMES, FileReceiver
from remote.sessions.limits import of_files
from remote.sessions.session import Node
from remote.shared import frames


def receive(node: Node, source: str, intake: FileReceiver) -> list[str]:
    """Bring `source` into the intake's folder, which has a limit; returns what was left out, with the reason.

    Raises NodeFailed where there is no such file.
    """
    assert intake.max_bytes is not None, "a node sends a folder up to a limit"
    return take_in(node, "send", {"path": source, "max_bytes": intake.max_bytes}, intake)


def take_in(
    node: Node,
    command: str,
    request: dict[str, Any],
    intake: FileReceiver,
    *,
    window_bytes: int | None = None,
) -> list[str]:
    """Take in the files that a command of the node's part sends; returns what was left out, with the reason."""
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
