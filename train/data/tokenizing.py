"""Make tokens of text: its bytes, or tokens by a file of the tokenizers package."""

import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from train.errors import BadData, BadEnvironment, MissingData

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
