"""Test the encryption with a passphrase."""

import pytest

from inventories.disk.sealed import check_passphrase, seal, unseal
from inventories.errors import CorruptFile, InvalidInput

PASSPHRASE = "correct horse battery"


def test_sealed_text_opens_with_its_passphrase_only() -> None:
    sealed = seal(b"-----BEGIN", PASSPHRASE)
    assert b"BEGIN" not in sealed
    assert unseal(sealed, PASSPHRASE, "my.key") == b"-----BEGIN"
    with pytest.raises(InvalidInput, match="passphrase is wrong"):
        unseal(sealed, f"{PASSPHRASE}.", "my.key")


@pytest.mark.parametrize("text", [b"", b"gpuctl-sealed-1 c2FsdA==\n", b"gpuctl-sealed-2 c2FsdA== dG9rZW4=\n"])
def test_other_text_is_named_as_no_sealed_file(text: bytes) -> None:
    with pytest.raises(CorruptFile, match=r"'my\.key' is no whole file"):
        unseal(text, PASSPHRASE, "my.key")


def test_short_passphrase_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 8"):
        check_passphrase("seven77")
