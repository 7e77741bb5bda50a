"""Text as sequences of tokens: each has as many, and begins where the one before it ends.

The text is turned into tokens once on a machine; see `train/data/token_file.py`.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from train.data.dataset import Dataset, Samples
from train.data.download import data_folder
from train.data.sentences import generated_text
from train.data.token_file import load_tokens
from train.distributed.environment import DistributedEnvironment
from train.errors import BadData, BadEnvironment, BadOptions, MissingData
from train.options import Options

HELD_OUT = 0.1
"""Fraction of the sequences to validate with, where the options say nothing: the last ones."""
PIECE = 1 << 18
"""Bytes of text in a piece, about."""
AT_ONCE = 16
"""Pieces that become tokens at once."""
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""Names of the token for the end of a text, of which a tokenizer's file has one."""


class Tokenizer(Protocol):
    """Makes tokens of text."""

    identity: str
    """Another one for a tokenizer that makes other tokens."""
    vocabulary: int
    """Tokens are 0 .. vocabulary - 1."""
    end_of_text: int
    """The token after each text."""

    def encode(self, pieces: Sequence[bytes]) -> Iterable[Sequence[int] | np.ndarray]:
        """Return the tokens of each of some pieces of text. Raises BadData."""
        ...


class Bytes:
    """Each byte is a token."""

    identity = "bytes"
    vocabulary = 257
    end_of_text = 256

    def encode(self, pieces: Sequence[bytes]) -> Iterable[np.ndarray]:
        """Return the bytes."""
        return [np.frombuffer(piece, dtype=np.uint8) for piece in pieces]


class FromFile:
    """A tokenizer.json of the tokenizers package."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises BadEnvironment without the package, MissingData and BadData for the file."""
        try:
            from tokenizers import Tokenizer as Library
        except ImportError as error:
            raise BadEnvironment(
                f"--tokenizer needs the package tokenizers, which is not installed here. Run: {sys.executable} -m "
                "pip install tokenizers; or leave the option out, and tokens are bytes."
            ) from error
        try:
            content = path.read_bytes()
        except OSError as error:
            raise MissingData(
                f"The tokenizer {path} can't be read on this machine: {error.strerror}. Put it there, or name "
                "another file with --tokenizer."
            ) from error
        try:
            self._library: Any = Library.from_str(content.decode())
        except Exception as error:  # its errors are bare ones
            raise BadData(
                f"{path} is no file of the tokenizers package ({error}). Give its tokenizer.json."
            ) from error
        # A text is cut into sequences later: its pieces are neither cut nor filled up.
        self._library.no_truncation()
        self._library.no_padding()
        names = self._library.get_vocab(with_added_tokens=True)
        self.identity = hashlib.sha256(content).hexdigest()
        self.vocabulary = max(names.values(), default=-1) + 1
        self.end_of_text: int = next((names[name] for name in ENDS if name in names), self.vocabulary)
        self.vocabulary = max(self.vocabulary, self.end_of_text + 1)

    def encode(self, pieces: Sequence[bytes]) -> Iterable[Sequence[int]]:
        """Return its tokens of each piece, which the package makes on all cores."""
        try:
            decoded = [piece.decode() for piece in pieces]
        except UnicodeDecodeError as error:
            raise BadData(
                f"The text is not UTF-8 ({error}). Convert it, or leave --tokenizer out."
            ) from error
        return [encoding.ids for encoding in self._library.encode_batch(decoded, add_special_tokens=False)]


def load_tokenizer(path: str | None) -> Tokenizer:
    """Return the tokenizer of that file; `None`: that of bytes."""
    return Bytes() if path is None else FromFile(Path(path).expanduser())


@dataclass(frozen=True, kw_only=True)
class Document:
    """A piece of text; the token for the end of a text is put after it."""

    name: str
    path: Path | None
    """`None`: it is the generated text."""
    version: tuple[int, int]
    """Its size, and when it was last changed: another text has another one."""

    def pieces(self) -> Iterator[bytes]:
        """Yield it in pieces that end where a line does, or else a word or a character."""
        if self.path is None:
            yield generated_text().encode()
            return
        rest = b""
        try:
            with self.path.open("rb") as file:
                while read := file.read(PIECE):
                    rest += read
                    end = _last_end(rest)
                    yield rest[:end]
                    rest = rest[end:]
        except OSError as error:
            raise BadData(f"{self.path} can't be read: {error.strerror}. Give access to it.") from error
        if rest:
            yield rest


def read(options: Options, env: DistributedEnvironment) -> Dataset:  # noqa: ARG001 - all datasets are read with the same call
    """Read the text in `options.data_dir`, a file or a folder of .txt files, or generate one."""
    tokenizer = load_tokenizer(options.tokenizer)
    documents = _documents(options.data_dir)
    loaded = load_tokens(
        data_folder(Options()) / "tokens",
        _digest(options.data_dir and str(Path(options.data_dir).expanduser().absolute()), options.tokenizer),
        _digest(tokenizer.identity, *((document.name, document.version) for document in documents)),
        _tokens(documents, tokenizer),
    )
    tokens = loaded.tokens
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
        content=loaded.digest,
    )


def sequences(tokens: torch.Tensor, length: int) -> Samples:
    """Cut tokens [n] into sequences of that length, and for each token of them the one that follows.

    Every token but the first follows in one sequence alone. At the end up to `length` tokens are left over.
    """
    count = max(0, (len(tokens) - 1) // length)
    end = count * length
    return Samples(inputs=tokens[:end].view(count, length), labels=tokens[1 : end + 1].view(count, length))


def _documents(folder: str | None) -> list[Document]:
    if folder is None:
        return [Document(name="generated", path=None, version=(1, 0))]
    path = Path(folder).expanduser()
    if not path.exists():
        raise MissingData(
            f"{path} is not on this machine. Put a file of text there, or a folder of .txt files, or name another "
            "one with --data-dir."
        )
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*.txt") if file.is_file())
    if not files:
        raise BadData(f"{path} has no .txt files. Put some there, or name a file of text with --data-dir.")
    known = [(file, file.stat()) for file in files]
    return [
        Document(name=str(file.absolute()), path=file, version=(stat.st_size, stat.st_mtime_ns))
        for file, stat in known
    ]


def _last_end(text: bytes) -> int:
    """Return where to cut the text: after its last line, else before its last space, else before its last character.

    A tokenizer takes a space for the beginning of a word. The remaining text is cut with the text after it.
    """
    line, space = text.rfind(b"\n") + 1, text.rfind(b" ")
    # The bytes of a character in UTF-8 but its first one are 10xxxxxx.
    character = next(
        (at for at in range(len(text) - 1, len(text) - 5, -1) if at > 0 and text[at] & 0xC0 != 0x80), 0
    )
    return line or max(space, 0) or character or len(text)


def _tokens(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """Yield the tokens of the texts, and the one for the end after each."""
    for document in documents:
        pieces = document.pieces()
        while some := list(islice(pieces, AT_ONCE)):
            yield from (np.asarray(tokens, dtype=np.int32) for tokens in tokenizer.encode(some))
        yield np.array([tokenizer.end_of_text], dtype=np.int32)


def _digest(*values: object) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:24]
