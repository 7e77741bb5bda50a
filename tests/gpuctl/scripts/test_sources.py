"""Test the paths, names and reading calls that a script's sources contain."""

from pathlib import Path

import pytest

from gpuctl.scripts.sources import (
    MAX_NAMES,
    config_texts,
    name_patterns,
    names_in,
    names_ranks,
    only_writes,
    outside_paths,
    reads_at,
    reads_files,
    shares_nothing,
)
from remote.files.tree import read_tree


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("open('/data/x.txt', 'w')", ["/data/x.txt"]),
        ("open(f\"/data/{os.environ['RANK']}/x-{i:03d}.txt\")", ["/data/*/x-*.txt"]),
        ('path = "/data/%03d.txt" % i', ["/data/*.txt"]),
        ("echo 1 > /data/$RANK.txt; cp x $HOME/y ~/z", ["/data/*.txt", "~/y", "~/z"]),
        ("output: /data/run # where", ["/data/run"]),
        ('open("../x"); open(os.path.join("..", "y")); "../../z"', ["../x", "../../z", ".."]),
        ("Path.home() / 'x'", ["~"]),
        ("os.path.expanduser('~')", ["~"]),
        ("tempfile.gettempdir()", ["/tmp"]),
        ("x = a/b + 4 /y; url = 'https://host/path'; 'a/b/c'; './d'; x[1]/2; f(a)/c", ["/y"]),
        ("'/', '//', '/*'", []),
    ],
)
def test_paths_that_may_lie_outside_the_project(text: str, paths: list[str]) -> None:
    assert outside_paths([text]) == paths


def test_names_of_files_are_patterns_as_a_script_composes_them() -> None:
    source = 'open(TMP + "part-" + rank + ".log"); f"run-{i}/a.pt"; "*"; "{x}"; f"{a}_{b}_{c}"; f"{a}-{b}.x"; "\'(,"'
    assert name_patterns(names_in([source], ["--out=dir/b"])) == [
        "*--out", "*.log", "a.pt", "dir", "part-*", "run-*"
    ]  # fmt: skip


def test_names_that_are_most_likely_files_are_kept_of_too_many() -> None:
    words = [f"word{at:04d}" for at in range(MAX_NAMES)]
    names = name_patterns(names_in([repr([*words, "z.pt", "zz-", "more,", "(a", "end."])], []))
    assert (len(names), names[-2:], names[0]) == (MAX_NAMES, ["z.pt", "zz-*"], "word0000")


@pytest.mark.parametrize(
    ("source", "divides"),
    [
        ("import webdataset as wds", True),
        ("dataset = wds.WebDataset(urls, nodesplitter=wds.split_by_node)", True),
        ("from litdata import StreamingDataset", True),
        ("from streaming import MDSWriter", True),
        ("import xgboost", True),
        ("import tensorflow as tf", True),
        ("data = data.shard(2, index)", True),
        ("os.environ['SLURM_PROCID']", True),
        ("fcntl.flock(file)", True),
        ("def train(rank, world_size): ...", True),
        ("import torch\nloss.backward()\nfor frank in array: pass", False),
        ("import numpy, pandas, sklearn", False),
    ],
)
def test_sources_that_may_divide_work_are_known(source: str, divides: bool) -> None:
    assert names_ranks([source]) is divides
    assert names_ranks([])


@pytest.mark.parametrize(
    ("source", "known"),
    [
        (
            "import torch, numpy as np\nfrom sklearn.svm import SVC\nfrom . import lib\nimport lib, os.path",
            True,
        ),
        ("from transformers import Trainer", False),
        ("import torch.distributed as dist", False),
        ("import torch; import lightning", False),
        ("import importlib", False),
    ],
)
def test_scripts_that_divide_no_work_for_sure_are_known(source: str, known: bool) -> None:
    assert shares_nothing([source], {"lib"}) is known
    assert not shares_nothing([], set())


def test_settings_files_count_that_a_script_names(tmp_path: Path) -> None:
    for name in ("conf/base.yaml", "conf/other.yaml", "big.json", "base.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert config_texts(read_tree(tmp_path), {"base", "big.json"}) == ["big.json", "conf/base.yaml"]


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ('torch.load("a.pt")', True),
        ("load_checkpoint(model)", True),
        ("model.restore()", True),
        ('open("x")', True),
        ('open("x", "rb")', True),
        ("Trainer(resume_from_checkpoint=True)", True),
        ("AutoModel.from_pretrained(name)", True),
        ('Path("x").exists()', True),
        ("pandas.read_csv(x)", True),
        ('open("x", "w")', False),
        ("DataLoader(data_loader, loader)", False),
        ("print('uploaded'); thread.spread()", False),
        ("torch.save(x, y)", False),
    ],
)
def test_sources_that_read_files_are_known(source: str, reads: bool) -> None:
    assert reads_files(source) is reads


@pytest.mark.parametrize(
    ("source", "only"),
    [
        ('open("c.yaml")\ntorch.save(x, "a.pt")\n', True),
        ('open("a.pt", "wb")\nx.to_csv("a.pt")\n', True),
        ('torch.save(x, "a.pt")\nif os.path.exists("a.pt"): pass\n', False),
        ('torch.save(x, "a.pt")\nglob("*.pt")\n', False),
        ('path = "a.pt"\ntorch.save(x, path)\n', False),
        ('save_path = "a.pt"\n', False),
        ('parser.add_argument("--save-path", default="a.pt")\n', False),
        ('def save(x, path="a.pt"):\n    torch.save(x, path)\n', False),
        ('config = dict(write_to="a.pt", saved=True)\n', False),
        ('save(x); path = "a.pt"\n', False),
        ('with open("a.pt") as file: copy(file, open("b.pt", "w"))\n', False),
        ('torch.save(x, f"{out}/a.pt")  # for later\nprint("saved a.pt")\n', True),
        ('print("a.pt")\n', False),
        ('torch.save(x, "a.pt")\nprint(torch.load("a.pt"))\n', False),
        ('with open(os.path.join(out, "a.pt"), mode="wb") as file: pass\n', True),
        ('Path("a.pt").write_bytes(x)\n(out / "a.pt").write_text(y)\n', True),
        ('model.save_pretrained("a.pt")\n_save("a.pt", x)\n', True),
        ('torch.save(x, "b.pt")\n', False),
    ],
)
def test_files_that_sources_only_write_are_known(source: str, only: bool) -> None:
    assert only_writes([source], "a.pt") is only


def test_place_at_which_files_are_read_is_known(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("\n" * 20 + "x = torch.load(y)\n" + "\n" * 20)
    assert reads_at(tmp_path, "KeyError: 'x' (a.py:22)")
    assert not reads_at(tmp_path, "KeyError: 'x' (a.py:40)")
    assert not reads_at(tmp_path, "KeyError: 'x' (gone.py:2)")
    assert not reads_at(tmp_path, "KeyError: 'x'")
