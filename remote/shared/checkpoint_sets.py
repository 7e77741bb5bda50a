"""Checkpoints in parts that a script's ranks write each for itself: which files belong together, and which lack.

torch.distributed.checkpoint writes `.metadata`, which names all parts, and `__R_N.distcp` of rank R; so do Lightning,
accelerate, Hugging Face's Trainer and Megatron-LM with it. DeepSpeed writes `zero_pp_rank_D_mp_rank_MM_…`, and
Megatron-LM's older format a folder `mp_rank_…` for each rank that divides the model.
"""

import re
from pathlib import Path, PurePosixPath
from typing import Collection, Dict, Iterable, List, Mapping, Set, Tuple

METADATA = ".metadata"
POINTERS = ("latest", "latest_checkpointed_iteration.txt", "zero_to_fp32.py")
"""Names of files that DeepSpeed and Megatron-LM write next to the folders of their checkpoints."""
MAX_METADATA_BYTES = 64 * 1000 * 1000
_PART = re.compile(
    r"\.metadata|__\d+\.metadata|__\d+_\d+\.distcp"
    r"|(?:\w+_)?zero_pp_rank_\d+_mp_rank_\d+_(?:optim|model)_states\.pt|(?:\w+_)?mp_rank_\d+_model_states\.pt"
    r"|rng_state_\d+\.pth|random_states_\d+\.pkl|(?:pytorch_model|model|optimizer)\w*_rank_?\d+\.(?:bin|pt)"
)
"""Names of files that ranks write each for itself."""
_PART_FOLDER = re.compile(r"mp_rank_\d+(?:_\d+)*")
_STEP = re.compile(r"(?:global_?step|checkpoint|ckpt|iter|step|epoch)[-_=]?\d+.*", re.IGNORECASE)
"""Names of folders that hold all of one step."""
_NAMED_PART = re.compile(rb"__\d+_\d+\.distcp")
_ZERO = re.compile(r"(?P<kind>\w*zero)_pp_rank_(?P<data>\d+)_mp_rank_(?P<model>\d+)_optim_states\.pt")
_RANK = re.compile(r"__(\d+)_\d+\.distcp|\w*zero_pp_rank_(\d+)_mp_rank_00_optim_states\.pt")


def sets_in(paths: Iterable[str]) -> Dict[str, List[str]]:
    """Return the files of each checkpoint in parts by its folder; in the topmost folder, `.`, its parts alone."""
    paths = sorted(paths)
    roots: Set[str] = set()
    for path in paths:
        *folders, name = path.split("/")
        divided = [at for at, folder in enumerate(folders) if _PART_FOLDER.fullmatch(folder)]
        if _PART.fullmatch(name) or divided:
            # The folder of a whole step, else the one in which the part lies.
            above = folders[: divided[0]] if divided else folders
            steps = [at for at, folder in enumerate(above) if _STEP.fullmatch(folder)]
            roots.add("/".join(above[: steps[0] + 1] if steps else above) or ".")
    sets: Dict[str, List[str]] = {}
    for path in paths:
        above = [str(folder) for folder in PurePosixPath(path).parents if str(folder) in roots]
        if above and (above[-1] != "." or _PART.fullmatch(path)):
            sets.setdefault(above[-1], []).append(path)
        elif len(above) > 1:
            sets.setdefault(above[-2], []).append(path)
    return sets


def named_parts(metadata: Path) -> List[str]:
    """Return the names of the parts that a `.metadata` of torch.distributed.checkpoint names; empty: unreadable.

    The file is a pickle, which is not loaded: names of parts are found in its bytes.
    """
    try:
        with open(str(metadata), "rb") as file:
            return sorted({name.decode() for name in _NAMED_PART.findall(file.read(MAX_METADATA_BYTES))})
    except OSError:
        return []


def missing_parts(files: Mapping[str, Path], written: Collection[str], ranks: int) -> List[str]:
    """Return the parts that checkpoints need and lack. `files`: the path of each that counts → the folder it is in.

    Of torch.distributed.checkpoint, the parts that `.metadata` names. Of DeepSpeed, of which each rank writes its
    part of the optimizer, the parts of all `ranks` of the run, in the folder that `latest` names. Both are written
    last: a save that was cut off lacks nothing. A part that was there before the run is not part of a checkpoint that
    the run has `written`.
    """
    lacking: Set[str] = set()
    zero: Dict[Tuple[str, str], Set[int]] = {}
    current = set(written).intersection(files)
    for path, folder in files.items():
        above, _, name = path.rpartition("/")
        prefix = above + "/" if above else ""
        if name == METADATA:
            parts = {prefix + part for part in named_parts(folder / path)}
            lacking.update(parts.difference(current if path in current else files))
        match = _ZERO.fullmatch(name)
        if match and path in current and _is_latest(above, files):
            zero.setdefault((prefix, match["kind"]), set()).add(int(match["model"]))
    for (prefix, kind), places in zero.items():
        models = 1 + max(places)
        names = (
            "{}_pp_rank_{}_mp_rank_{:02d}_optim_states.pt".format(kind, *divmod(rank, models))
            for rank in range(ranks)
        )
        lacking.update({prefix + name for name in names}.difference(current))
    return sorted(lacking)


def _is_latest(folder: str, files: Mapping[str, Path]) -> bool:
    """Return whether DeepSpeed's `latest`, next to the folder, names it."""
    above, _, name = folder.rpartition("/")
    pointer = above + "/latest" if above else "latest"
    try:
        return pointer in files and (files[pointer] / pointer).read_text().strip() == name
    except (OSError, ValueError):
        return False


def ranks_of(paths: Iterable[str]) -> List[int]:
    """Return the numbers of the ranks that write these parts; empty where the names do not give all of them."""
    matches = [_RANK.fullmatch(path.rpartition("/")[2]) for path in paths]
    return sorted({int(match[1] or match[2]) for match in matches if match}) if all(matches) else []
