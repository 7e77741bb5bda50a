"""Test what a file of `key export` may and may not do on the computer that imports it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import a_machine, an_inventory

from gpuctl.app import App
from gpuctl.command_line import cli
from gpuctl.errors import Usage
from gpuctl.workflow.clusters.key import Access, export_key, import_key, may_start_program
from inventories import codec
from inventories.disk import sealed
from inventories.errors import InvalidInput
from inventories.machine import Machine
from provision.records import Zone
from provision.rented.managed_kubernetes.api_server import ApiServer, kubeconfig, with_local_plugin
from provision.rented.state import CloudState, Launch

PASSPHRASE = "long enough 1"
JOURNAL = '{"event":"up","provider":"aws","create":[]}\n'


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))
    return App()


def sealed_file(folder: Path, *machines: Machine, **parts: str) -> Path:
    """Return a file of an exported cluster on AWS."""
    inventory = an_inventory(*machines, provider="aws", region="us-east-1")
    files = {"journal.jsonl": JOURNAL, "cloud.json": "{}", **parts}
    file = folder / "my.key"
    file.write_bytes(sealed.seal(codec.dump(Access(inventory=inventory, files=files)), PASSPHRASE))
    return file


def test_file_that_could_start_a_program_here_is_refused(app: App, tmp_path: Path) -> None:
    file = sealed_file(tmp_path, replace(a_machine(), proxy_command="sh -c id"))
    with pytest.raises(InvalidInput, match="could start a program on this computer"):
        import_key(app, file, PASSPHRASE)
    assert not app.store.clusters()


@pytest.mark.parametrize(
    "fields",
    [
        {"ssh_alias": "my-laptop"},
        {"transport": "other"},
        {"host": "203.0.113.1\n    ProxyCommand id"},
        {"name": "default-0\nMatch exec id"},
        {"bastion": "me@there -o ProxyCommand=id"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_address_with_more_than_an_address_is_noticed(fields: dict[str, Any]) -> None:
    assert not may_start_program(a_machine())
    assert may_start_program(replace(a_machine(), **fields))


def test_kubeconfig_of_another_computer_gets_the_python_of_this_one() -> None:
    command = ["eks-token", "--name", "gpuctl-default", "--region", "us-east-1", "--profile", "me"]
    text = kubeconfig("gpuctl-default", ApiServer(url="https://api", authority="QUJD"), command)
    there = yaml.safe_load(text)
    there["users"][0]["user"]["exec"]["command"] = "/other/python"
    assert with_local_plugin(yaml.safe_dump(there)) == text


@pytest.mark.parametrize(
    "change",
    [
        {"args": ["-c", "import os"]},
        {"args": ["-P", "-m", "gpuctl", "down", "--yes"]},
        {"args": ["-P", "-m", "gpuctl", "eks-token", "--notify", "cmd:id"]},
        {"args": None},
        {"env": [{"name": "PYTHONPATH", "value": "/tmp"}]},
    ],
)
def test_kubeconfig_with_another_command_is_refused(change: dict[str, Any]) -> None:
    command = ["oke-token", "--cluster-id", "ocid1", "--region", "eu-frankfurt-1"]
    there = yaml.safe_load(kubeconfig("a", ApiServer(url="https://api", authority=""), command))
    there["users"][0]["user"]["exec"] |= change
    with pytest.raises(InvalidInput, match="not as gpuctl writes it"):
        with_local_plugin(yaml.safe_dump(there))


def test_kubeconfig_keeps_nothing_but_address_and_authority() -> None:
    command = ["oke-token", "--cluster-id", "ocid1", "--region", "eu-frankfurt-1"]
    text = kubeconfig("a", ApiServer(url="https://api", authority=""), command)
    there = yaml.safe_load(text)
    there["users"][0]["user"]["auth-provider"] = {"name": "gcp", "config": {"cmd-path": "id"}}
    there["clusters"][0]["cluster"]["proxy-url"] = "http://127.0.0.1"
    assert with_local_plugin(yaml.safe_dump(there)) == text


def an_open_launch() -> Launch:
    now = "2026-11-21T06:00:00+00:00"
    return Launch(
        id="ab12",
        zone=Zone(name="a"),
        ranks=(0,),
        user="ubuntu",
        host_keys=("ssh-ed25519 A",),
        requests=({"token": "ab12"},),
        began_at=now,
        sent_at=now,
        state="open",
    )


def test_interrupted_launch_is_neither_exported_nor_imported(app: App, tmp_path: Path) -> None:
    launch = codec.dump(an_open_launch()).decode()
    with pytest.raises(InvalidInput, match="has an interrupted launch"):
        import_key(app, sealed_file(tmp_path, **{"launches/ab12.json": launch}), PASSPHRASE)
    assert not app.store.clusters()
    folder = app.store.cluster("default")
    folder.save(an_inventory(provider="aws", region="us-east-1"))
    CloudState(folder).save_launch(an_open_launch())
    with pytest.raises(Usage, match="A launch of default was interrupted"):
        export_key(app, tmp_path / "new.key", PASSPHRASE)
    assert not (tmp_path / "new.key").exists()


def test_import_that_was_cut_off_can_be_repeated(app: App, tmp_path: Path) -> None:
    file = sealed_file(tmp_path)
    folder = app.store.cluster("default")
    folder.make()
    folder.journal.path.write_text(JOURNAL.replace("aws", "oci"))
    with pytest.raises(Usage, match="known here already"):
        import_key(app, file, PASSPHRASE)
    folder.journal.path.write_text(JOURNAL)
    assert import_key(app, file, PASSPHRASE).cluster == "default"
    with pytest.raises(Usage, match="known here already"):
        import_key(app, file, PASSPHRASE)


def test_passphrase_file_has_to_be_text_of_its_owner_alone(
    app: App, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app.store.cluster("default").save(an_inventory(provider="aws", region="us-east-1"))
    file = tmp_path / "passphrase"
    file.write_bytes(b"\xff\xfe long enough\n")
    for mode, problem in ((0o600, "it is no text in UTF-8"), (0o644, "others can read this file")):
        file.chmod(mode)
        assert cli.main(["key", "export", str(tmp_path / "k"), "--passphrase-file", str(file)]) == 2
        assert problem in capsys.readouterr().err
    file.write_text("long enough 1")
    file.chmod(0o600)
    words = ["key", "export", str(tmp_path / "no" / "k"), "--passphrase-file", str(file)]
    assert cli.main(words) == 2
    assert "There is no folder" in capsys.readouterr().err
