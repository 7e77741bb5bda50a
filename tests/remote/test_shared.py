"""Test the constants and formats shared by nodes, client and the built-in job."""

import ast
import io
import sys
import zipfile
import zlib
from pathlib import Path

import pytest

from inventories.disk.store import RunFolder
from remote.sessions import node_payload
from remote.sessions.node_payload import SENT
from remote.shared import constants
from remote.shared.addresses import without_logins
from remote.shared.secret_arguments import without_secrets
from train import constants as job

REMOTE = Path(__file__).parents[2] / "remote"
SOURCES = [path for part in SENT for path in sorted((REMOTE / part).rglob("*.py"))]


def test_names_of_the_job_equal_those_of_the_nodes_part() -> None:
    names = {name: value for name, value in vars(job).items() if name.isupper()}
    assert {name: getattr(constants, name, None) for name in names} == names


def test_what_is_sent_is_every_module_of_the_nodes_part() -> None:
    data = zlib.decompress(node_payload.packed())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        sent = set(archive.namelist()) - {"__main__.py", "remote/__init__.py"}
    assert sent == {path.relative_to(REMOTE.parent).as_posix() for path in SOURCES}


def test_folders_of_a_run_have_the_same_names_here_and_on_nodes(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    local = [run.logs_path, run.metrics_path, run.ranks_path, run.artifacts_path, run.checkpoints_path]
    names = [constants.LOGS, constants.METRICS, constants.RANKS, constants.ARTIFACTS, constants.CHECKPOINTS]
    assert [path.name for path in local] == names
    ranks = (constants.RANK_LOG, constants.RANK_METRICS, constants.RANK_RECORD)
    assert [template.partition("/")[0] for template in ranks] == names[:3]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(REMOTE)))
def test_what_is_sent_imports_only_the_standard_library_and_itself(source: Path) -> None:
    local = tuple(f"remote.{part}" for part in SENT)
    for node in ast.walk(ast.parse(source.read_text(), feature_version=(3, 8))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            outside = name.partition(".")[0] == "ray"  # there where it is imported, in a function
            assert (
                outside
                or name.partition(".")[0] in sys.stdlib_module_names
                or f"{name}.".startswith(tuple(f"{part}." for part in local))
            )


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("git+https://me:secret@h/y@v1", "git+https://h/y@v1"),
        ("https://me:sec/ret@h/y and https://token@h", "https://h/y and https://h"),
        ("https://h/y@v1", "https://h/y@v1"),
        ("https://h:8080/y@v1 https://[::1]:80/y@v1", "https://h:8080/y@v1 https://[::1]:80/y@v1"),
    ],
)
def test_addresses_are_shown_without_their_logins(address: str, shown: str) -> None:
    assert without_logins(address) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("--api-key K --lr 0.1", "--api-key *** --lr 0.1"),
        ("--hf_token=T --password P --seed 1", "--hf_token=*** --password *** --seed 1"),
        ("auth.token=T model.lr=1", "auth.token=*** model.lr=1"),
        ("--token --lr 1", "--token --lr 1"),
        ("--max-tokens 5 --tokenizer gpt2 --pad_token X", "--max-tokens 5 --tokenizer gpt2 --pad_token X"),
        ("--data s3://u:p@host/set", "--data s3://host/set"),
        ("--openai-key K --wandb_key=K --hftoken T", "--openai-key *** --wandb_key=*** --hftoken ***"),
        ("--accessToken T --APIKey K --pwd P", "--accessToken *** --APIKey *** --pwd ***"),
        ("--tokens T U --api-keys K L --lr 1", "--tokens *** *** --api-keys *** *** --lr 1"),
        ("--webhook https://h/x --webhook-url=u", "--webhook *** --webhook-url=***"),
        ("--url https://h/x?a=1&token=T&Sig=S#b", "--url https://h/x?a=1&token=***&Sig=***"),
        ('--config {"lr":1,"api_key":"K","pwd":"P"}', '--config {"lr":1,"api_key":"***","pwd":"***"}'),
        ("--n-token 4 --loss-per-token yes --tokens 10B", "--n-token 4 --loss-per-token yes --tokens 10B"),
        ("--image-key jpg --num-keys 3 --monkey M", "--image-key jpg --num-keys 3 --monkey M"),
    ],
)
def test_arguments_are_shown_without_secrets(line: str, shown: str) -> None:
    assert without_secrets(line.split()) == shown.split()
