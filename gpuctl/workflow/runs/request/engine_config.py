"""Read the file of --deepspeed-config, and pass it to the ranks among the built-in job's options.

Options are in the records of a run and in lists of processes. So keys that are not about training, whose values may
be tokens, are refused before.
"""

import json
import stat
from dataclasses import replace
from pathlib import Path

from gpuctl.errors import Usage
from gpuctl.workflow.runs.request.ask_built_in import ask_built_in
from gpuctl.workflow.runs.request.request import TrainRequest, value_of

DEEPSPEED_CONFIG = "--deepspeed-config"
MAX_BYTES = 64 * 1024
"""Maximum of a configuration; Linux takes twice that in one word of a command line."""


def with_config(request: TrainRequest) -> TrainRequest:
    """Return the request with the content of the --deepspeed-config file in place of its name. Raises Usage.

    So all ranks get it, on any node, and a resumed run has it after the file was changed.
    """
    name = value_of(request.words, DEEPSPEED_CONFIG) if request.built_in else None
    if name is None:
        return request
    inline = name.lstrip().startswith("{")
    shown = DEEPSPEED_CONFIG if inline else f"{DEEPSPEED_CONFIG} {name}"
    try:
        config_keys = json.loads(name if inline else _text(request.folder / name, shown))
    except OSError as error:
        raise Usage(f"{shown} can't be read: {error.strerror}.") from None
    except RecursionError:
        raise Usage(f"{shown} is no configuration: its JSON is too deep.") from None
    except ValueError as error:
        raise Usage(f"{shown} is no JSON: {error}.") from None
    if not isinstance(config_keys, dict):
        raise Usage(f"{shown} is no JSON object: give one, as DeepSpeed's documentation has it.")
    config = json.dumps(config_keys, separators=(",", ":"))
    if len(config) > MAX_BYTES:
        raise _too_large(shown)
    done = ask_built_in("keys", (), config_keys)
    if done.returncode:
        raise Usage(f"{shown} can't be checked: the job's code ended with status {done.returncode}.")
    words = [
        config if before == DEEPSPEED_CONFIG else word
        for before, word in zip(("", *request.words), request.words, strict=False)
        if not word.startswith(f"{DEEPSPEED_CONFIG}=")
    ]
    if DEEPSPEED_CONFIG not in words:
        words.append(f"{DEEPSPEED_CONFIG}={config}")
    return replace(request, words=tuple(words))


def _text(path: Path, shown: str) -> str:
    """Return the content of a file. Raises Usage for a file without end, or one that is too large."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise Usage(f"{shown} is no regular file: give a JSON file.")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise _too_large(shown)
    return content.decode()


def _too_large(shown: str) -> Usage:
    return Usage(
        f"{shown} is larger than {MAX_BYTES // 1024} KiB, which no configuration needs to be: is it the right file?"
    )
