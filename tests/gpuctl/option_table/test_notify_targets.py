"""Test the targets of `--notify`: files of targets, and what a target needs on this computer."""

from pathlib import Path

import pytest

from gpuctl.errors import Usage
from gpuctl.option_table.values import notify_targets


def test_targets_of_a_file_are_added(tmp_path: Path) -> None:
    path = tmp_path / "targets"
    path.write_text("# mine\nntfy:a\n\n  command:true  \nntfy:a\n")
    path.chmod(0o600)
    assert notify_targets([f"@{path}", "ntfy:b"]) == ("ntfy:a", "command:true", "ntfy:b")


def test_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "targets"
    path.write_text("ntfy:s3cret")
    path.chmod(0o644)
    with pytest.raises(Usage, match=f"chmod 600 {path}"):
        notify_targets([f"@{path}"])
    with pytest.raises(Usage, match="can't be read"):
        notify_targets([f"@{path}-2"])


def test_mail_needs_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUCTL_SMTP", raising=False)
    with pytest.raises(Usage, match="export GPUCTL_SMTP=smtps://"):
        notify_targets(["mail:you@example.org"])
    monkeypatch.setenv("GPUCTL_SMTP", "smtps://mail.example.org")
    assert notify_targets(["mail:you@example.org"]) == ("mail:you@example.org",)


def test_secret_that_is_no_base64_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCTL_NOTIFY_SECRET", "whsec_s3cret")
    with pytest.raises(Usage, match="GPUCTL_NOTIFY_SECRET") as error:
        notify_targets(["https://example.org"])
    assert "s3cret" not in str(error.value)
