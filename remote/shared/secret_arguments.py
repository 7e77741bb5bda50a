"""The arguments of a script as other people may see them, the same on both sides."""

import re
from typing import List, Sequence

from remote.shared.addresses import without_logins

HIDDEN = "***"
"""Stands for a value."""
_NAME = re.compile(
    r"(?:.*[-_.])?(?:(?:api|access|secret|private|auth)[-_]?key|secret|password|passwd|passphrase|credentials?"
    r"|(?<!pad.)(?<!bos.)(?<!eos.)(?<!unk.)(?<!sep.)(?<!cls.)(?<!mask.)(?<!stop.)(?<!image.)(?<!special.)token)",
    re.IGNORECASE,
)
"""Names of options with a secret. A token with `pad` or `eos` before it is one of a language model."""


def without_secrets(words: Sequence[str]) -> List[str]:
    """Return a script's arguments without passwords, keys, tokens, and logins in addresses.

    without_secrets(["--api-key", "K", "--hf_token=T", "--lr", "1"])  # ["--api-key", "***", "--hf_token=***", …]
    """
    shown: List[str] = []
    hides_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_secret = bool(_NAME.fullmatch(name.lstrip("-+")))
        if hides_next and not word.startswith("--"):
            shown.append(HIDDEN)
        elif is_secret and equals:
            shown.append("{}={}".format(name, HIDDEN))
        else:
            shown.append(without_logins(word))
        hides_next = is_secret and not equals and word.startswith("-")
    return shown
