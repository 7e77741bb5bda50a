"""The language between a node and this computer: a JSON header on a line, then as many raw bytes as it says.

{"t": "file", "path": "logs/rank-0.log", "offset": 0, "size": 5}\\nhello
"""

import json
from typing import Any, BinaryIO, Callable, Dict, Iterator, Tuple

MAX_HEADER_BYTES = 16 * 1024 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 256 * 1024

# Kinds of frames, the values of "t".
BEAT = "beat"
CHECKPOINT = "checkpoint"
CHECKPOINTS = "checkpoints"
CHUNK = "chunk"
CLEANED = "cleaned"
CLOSE = "close"
COMPLETE = "complete"
DIGESTS = "digests"
DISCARDED = "discarded"
DONE = "done"
DRIVER = "driver"
END = "end"
ENTRY = "entry"
ENVIRONMENT = "environment"
FACTS = "facts"
FAILED = "failed"
FILE = "file"
FIREWALL = "firewall"
HANG = "hang"
ITEM = "item"
LISTENING = "listening"
LIST = "look"
LOOKED = "looked"
MANIFEST = "manifest"
NEED = "need"
NOTHING = "nothing"
NOTICES = "notices"
OUTCOMES = "outcomes"
OUTPUTS = "outputs"
PARTS = "parts"
PEERS = "peers"
PLACED = "placed"
PROGRESS = "progress"
DOWNLOAD = "download"
RANK = "rank"
READY = "ready"
RECORD = "record"
SCRIPT_FILE = "script_file"
SENT = "sent"
SKIPPED = "skipped"
STARTED = "started"
STATE = "state"
STOPPED = "stopped"
SYNCED = "synced"
ORDERED = "told"
USAGE = "usage"
WAITING = "waiting"

Frame = Tuple[Dict[str, Any], bytes]


class BadFrame(Exception):
    """The bytes are not a frame: the other side is not gpuctl's."""


class CutFrame(BadFrame):
    """The stream ended in the middle of a frame."""


def encode(header: Dict[str, Any], body: bytes = b"") -> bytes:
    """Return a frame's bytes; `size` is added with a body."""
    if body:
        header = dict(header, size=len(body))
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + body


def write(stream: BinaryIO, header: Dict[str, Any], body: bytes = b"") -> None:
    """Write one frame and flush it."""
    stream.write(encode(header, body))
    stream.flush()


def decode(readline: Callable[[int], bytes], read: Callable[[int], bytes]) -> Iterator[Frame]:
    """Frames until the end of the stream. Raises BadFrame on anything else, CutFrame if it is cut."""
    while True:
        line = readline(MAX_HEADER_BYTES)
        if not line:
            return
        if not line.endswith(b"\n") and len(line) < MAX_HEADER_BYTES:
            raise CutFrame("the stream ended in the middle of {!r}".format(line[:200]))
        try:
            header = json.loads(line)
            size = int(header.get("size", 0))
        except (ValueError, AttributeError, TypeError, RecursionError, OverflowError) as error:
            raise BadFrame("expected a frame, got {!r}".format(line[:200])) from error
        if not 0 <= size <= MAX_BODY_BYTES:
            raise BadFrame("a frame is too large: {!r}".format(line[:200]))
        body = read(size) if size else b""
        if len(body) != size:
            raise CutFrame("the stream ended in the middle of {!r}".format(line[:200]))
        yield header, body
