"""What the words after `gpuctl train` stand for."""

from pathlib import Path

import pytest

from gpuctl.workflow.request import home_note


@pytest.mark.parametrize("provider", ["local", "hosts", "aws"])
@pytest.mark.parametrize("form", [("--data-dir", "{}"), ("--data-dir={}",)])
def test_a_home_that_the_shell_has_put_in_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, form: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ("--epochs", "1", *(word.format(tmp_path / "sets" / "flowers") for word in form))
    note = (
        f"note: --data-dir {tmp_path}/sets/flowers is in the home of this computer. For a folder in the nodes' "
        "homes, put it in quotes, which keep the shell from replacing it: --data-dir '~/sets/flowers'"
    )
    assert home_note(words, provider) == note
    (tmp_path / "sets" / "flowers").mkdir(parents=True)
    assert home_note(words, provider) == (None if provider == "local" else note), (
        "local hosts see this one, too"
    )


@pytest.mark.parametrize("words", [(), ("--data-dir",), ("--data-dir", "/data"), ("--data-dir", "~/sets")])
def test_other_folders_are_as_they_are(words: tuple[str, ...]) -> None:
    assert home_note(words, "aws") is None
