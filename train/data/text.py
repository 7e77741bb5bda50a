"""Text as sequences of tokens: each has as many, and begins where the one before it ends.

The text is turned into tokens once on a machine. All ranks there map the same file of them into memory.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from train.data.dataset import Dataset, Samples
from train.data.download import POLL_S, WAIT_S, data_folder
from train.data.sentences import generated_text
from train.data.tokenizing import Tokenizer, load_tokenizer
from train.distributed.environment import DistributedEnvironment
from train.errors import BadData, BadOptions, MissingData, NotWritten
from train.options import Options

HELD_OUT = 0.1
"""Fraction of the sequences to validate with, where the options say nothing: the last ones."""
CHUNK = 1 << 20
"""Bytes of text that become tokens at once."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A piece of text; the token for the end of a text is put after it."""

    name: str
    path: Path | None
    """None: it is the generated text."""
    version: tuple[int, int]
    """Its size, and when it was last changed: another text has another one."""

    def chunks(self) -> Iterator[bytes]:
        """Yield it in pieces of whole lines."""
        if self.path is None:
            yield generated_text().encode()
            return
        try:
            with self.path.open("rb") as file:
                while lines := file.readlines(CHUNK):
                    yield b"".join(lines)
        except OSError as error:
            raise BadData(f"{self.path} can't be read: {error.strerror}. Give access to it.") from error


def read(options: Options, env: DistributedEnvironment) -> Dataset:  # noqa: ARG001 - all datasets are read with the same call
    """Read the text in `options.data_dir`, a file or a folder of .txt files, or generate one."""
    tokenizer = load_tokenizer(options.tokenizer)
    documents = _documents(options.data_dir)
    named = json.dumps([tokenizer.identity, *((one.name, one.version) for one in documents)])
    path = data_folder(Options()) / "tokens" / f"{hashlib.sha256(named.encode()).hexdigest()[:24]}.int32"
    _ensure_tokens(path, documents, tokenizer)
    tokens = torch.from_file(str(path), shared=False, size=path.stat().st_size // 4, dtype=torch.int32)
    samples = sequences(tokens, options.seq_len)
    held_out = HELD_OUT if options.validation is None else options.validation
    training = len(samples) - max(1, round(held_out * len(samples)))
    if training < 1:
        raise BadOptions(
            f"The text has {len(tokens):,} tokens: too few for a sequence of {options.seq_len} to train on and "
            "another one to validate with. Give a smaller --seq-len or --validation, or more text."
        )
    return Dataset(
        name="text",
        training=samples[slice(training)],
        validation=samples[slice(training, None)],
        test=None,
        classes=tokenizer.vocabulary,
    )


def sequences(tokens: torch.Tensor, length: int) -> Samples:
    """Cut tokens [n] into sequences of that length, and for each token of them the one that follows.

    Every token but the first follows in one sequence alone. At the end up to `length` tokens are left over.
    """
    count = max(0, (len(tokens) - 1) // length)
    end = count * length
    return Samples(inputs=tokens[:end].view(count, length), labels=tokens[1 : end + 1].view(count, length))


def _documents(given: str | None) -> list[Document]:
    if given is None:
        return [Document(name="generated", path=None, version=(1, 0))]
    path = Path(given).expanduser()
    if not path.exists():
        raise MissingData(
            f"{path} is not on this machine. Put a file of text there, or a folder of .txt files, or name another "
            "one with --data-dir."
        )
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*.txt") if one.is_file())
    if not files:
        raise BadData(f"{path} has no .txt files. Put some there, or name a file of text with --data-dir.")
    known = [(one, one.stat()) for one in files]
    return [
        Document(name=str(one.absolute()), path=one, version=(stat.st_size, stat.st_mtime_ns))
        for one, stat in known
    ]


def _ensure_tokens(path: Path, documents: Iterable[Document], tokenizer: Tokenizer) -> None:
    """Return when the file of tokens is there. It is written at most once at a time on this machine."""
    if path.exists():
        return
    import filelock  # torch brings it along

    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(path.with_suffix(".lock"), timeout=WAIT_S).acquire(poll_interval=POLL_S):
            if path.exists():
                return
            with part.open("wb") as file:
                for document in documents:
                    for chunk in document.chunks():
                        file.write(np.asarray(tokenizer.encode(chunk), dtype=np.int32).tobytes())
                    file.write(np.int32(tokenizer.end_of_text).tobytes())
            part.replace(path)
    except filelock.Timeout as error:
        raise MissingData(
            f"Another process on this machine has been making tokens of the text for {WAIT_S:g} s: it holds "
            f"{error.lock_file}. If it hangs, end it and start again."
        ) from error
    except OSError as error:
        raise NotWritten(
            f"The tokens of the text can't be written to {path.parent}: {error.strerror}. Make room or give access "
            "there, or name another folder in GPUCTL_DATA_DIR."
        ) from error
