"""The arguments of a script as other people may see them, the same on both sides."""

import re
from typing import List, Match, Sequence

from remote.shared.addresses import without_logins

HIDDEN = "***"
"""Stands for a value."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""A word of `api-key`, `apiKey` or `API_KEY`."""
_ALWAYS = (
    "secret",
    "secrets",
    "password",
    "passwords",
    "passwd",
    "passphrase",
    "pwd",
    "credential",
    "credentials",
)
_KINDS = ("api", "access", "secret", "private", "auth", "hf")
"""Words before `keys` and `tokens` of which no model and no table has any."""
_DATA = re.compile(
    "public|sort|primary|foreign|partition|cache|index|id|name|group|row|column|field|features?|dict|json|data|dataset"
    "|inputs?|outputs?|target|source|images?|pixel|mask|audio|video|caption|text|labels?|class|category|prompt|query"
    "|question|answer|response|completion|chosen|rejected|messages?|metric|loss|reward|score|state|model|weight|param"
    "|config|time|timestamp|hot|rng|prng|random|per|num|max"
)
"""Words before `key` in the name of a column, of a field, or of a generator."""
_LANGUAGE = re.compile("pad|bos|eos|unk|sep|cls|mask|stop|image|special|per|num|max|min")
"""Words before `token` in an option of a language model."""
_AMOUNT = re.compile(r"[\d.,]{1,9}[kKmMbB]?")
_INSIDE = re.compile(r"""([?&;{,\s]["']?)([\w.-]+)(=|["']?\s*:\s*)("(?:[^"\\]|\\.)*"|'[^']*'|[^&"',}\s]+)""")
"""A name and its value in an address or in JSON."""


def is_secret(name: str, value: str = "") -> bool:
    """Return whether an option of that name has a secret as its value.

    is_secret("--openai-key"), is_secret("pad_token"), is_secret("n-token", "4")  # True, False, False
    """
    words = [""] + [word.lower() for word in _WORD.findall(name)]
    before, last = words[-2:] if len(words) > 1 else ("", "")
    for end in ("key", "keys", "token", "tokens"):  # apikey, hftoken
        if last.endswith(end) and last != end and (end.startswith("token") or last[: -len(end)] in _KINDS):
            before, last = last[: -len(end)], end
    if last == "key":
        return not _DATA.fullmatch(before)
    if last == "token":
        return not _LANGUAGE.fullmatch(before) and not _AMOUNT.fullmatch(value)
    if last in ("keys", "tokens"):
        is_plain = last == "tokens" and not before
        return before in _KINDS or (is_plain and not _AMOUNT.fullmatch(value))
    return last in _ALWAYS or "webhook" in (last, before if last == "url" else "")


def without_secrets(words: Sequence[str]) -> List[str]:
    """Return a script's arguments without passwords, keys, tokens, and logins in addresses.

    without_secrets(["--api-key", "K", "--hf_token=T", "--lr", "1"])  # ["--api-key", "***", "--hf_token=***", …]
    """
    shown: List[str] = []
    option = ""
    for word in words:
        name, equals, value = word.partition("=")
        if option and not word.startswith("--") and is_secret(option, word):
            shown.append(HIDDEN)
            option = option if option.endswith("s") else ""  # `--api-keys K K`
            continue
        if equals and is_secret(name, value):
            shown.append("{}={}".format(name, HIDDEN))
        else:
            shown.append(_INSIDE.sub(_hidden, without_logins(word)))
        option = word if word.startswith("-") and not equals else ""
    return shown


def _hidden(found: Match[str]) -> str:
    """Return a name of an address or of JSON with its value, hidden if it is a secret."""
    begin, name, between, value = found.groups()
    is_signature = begin in "?&" and name.lower().endswith(("sig", "signature"))
    if not (is_signature or is_secret(name, value.strip("\"'"))):
        return found.group()
    quote = value[0] if value[0] in "\"'" else ""
    return "{}{}{}{}{}{}".format(begin, name, between, quote, HIDDEN, quote)
