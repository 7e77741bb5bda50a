"""Bytes that only a passphrase opens: scrypt derives the key, Fernet encrypts and authenticates."""

import base64
import os

from inventories.errors import CorruptFile, InvalidInput

MARK = b"gpuctl-sealed-1"
"""First word of the text: the version of its format."""
SALT_BYTES = 16
SCRYPT = {"n": 2**17, "r": 8, "p": 1}
"""Cost of a guess: 128 MiB and about half a second. Part of the format."""
MIN_LENGTH = 8
"""Characters of a passphrase."""


def check_passphrase(passphrase: str) -> str:
    """Return the passphrase. Raises InvalidInput for one that is too short."""
    if len(passphrase) < MIN_LENGTH:
        raise InvalidInput(f"The passphrase is too short: give at least {MIN_LENGTH} characters.")
    return passphrase


def seal(content: bytes, passphrase: str) -> bytes:
    """Return the content, encrypted, as a line of text."""
    from cryptography.fernet import Fernet

    salt = os.urandom(SALT_BYTES)
    token = Fernet(_key(passphrase, salt)).encrypt(content)
    return b" ".join((MARK, base64.urlsafe_b64encode(salt), token)) + b"\n"


def unseal(text: bytes, passphrase: str, source: str) -> bytes:
    """Return the content of a text of `seal`. `source`: name of its file.

    Raises InvalidInput for another passphrase or a changed text, CorruptFile for a text that is not of `seal`.
    """
    from cryptography.fernet import Fernet, InvalidToken

    words = text.split()
    if len(words) != 3 or words[0] != MARK:
        raise CorruptFile(f"'{source}' is no whole file of `gpuctl key export`. Write it again there.")
    try:
        return Fernet(_key(passphrase, base64.urlsafe_b64decode(words[1]))).decrypt(words[2])
    except (InvalidToken, ValueError) as error:
        raise InvalidInput(
            f"'{source}' can't be opened: the passphrase is wrong, or the file was changed."
        ) from error


def _key(passphrase: str, salt: bytes) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    derived = Scrypt(salt=salt, length=32, **SCRYPT).derive(passphrase.encode())
    return base64.urlsafe_b64encode(derived)
