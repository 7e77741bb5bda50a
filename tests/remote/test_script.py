"""What a person names to be run, looked at before anything is sent."""

from pathlib import Path

import pytest

from remote.errors import ScriptNotSynced
from remote.script import user_function
from remote.tree import tree_of


@pytest.mark.parametrize(
    "source",
    [
        "def objective(config): pass",
        "objective = make()",
        "try:\n    from a import objective\nexcept ImportError:\n    from b import other as objective",
        "import search as objective",
        "from search import *",
        "globals()['objective'] = 1",
        "def __getattr__(name): return print",
        "match = newer python's syntax",
        "pattern = '\\d'\nclass objective: pass",
    ],
)
def test_user_function_accepts_sources_that_may_define_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    (tmp_path / "search.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    assert user_function("search.py:objective", tree_of(tmp_path, "*.py")).target == "search:objective"


@pytest.mark.parametrize("source", ["", "def objectiv(config): pass", "objective()", "'objective'"])
def test_user_function_refuses_a_missing_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    (tmp_path / "search.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ScriptNotSynced, match=r"^search.py has no objective(\.|; did you mean 'objectiv'\?)$"
    ):
        user_function("search.py:objective", tree_of(tmp_path, "*.py"))
