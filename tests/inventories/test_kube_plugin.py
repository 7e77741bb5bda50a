"""Test the credential plug-in of a kubeconfig: its time limit, its environment, and its output."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from inventories import kube_context, kube_plugin
from inventories.kube_context import KubeContext, headers_of
from inventories.kube_plugin import PluginFailed, credentials

VERSION = "client.authentication.k8s.io/v1"


def plugin(script: str, **more: object) -> dict[str, Any]:
    return {
        "apiVersion": VERSION,
        "command": "sh",
        "args": ["-c", script],
        "interactiveMode": "Never",
        **more,
    }


def given(**status: str) -> str:
    document = {"apiVersion": VERSION, "kind": "ExecCredential", "status": status}
    return f"echo '{json.dumps(document)}'"


def run(script: str, **more: object) -> dict[str, Any]:
    cluster = {
        "server": "https://192.0.2.1",
        "extensions": [{"name": kube_plugin.CONFIG, "extension": {"a": 1}}],
    }
    return credentials(plugin(script, **more), context="test", cluster=cluster, folder=None)


def test_plug_in_that_hangs_is_ended_with_its_children_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kube_plugin, "WITHOUT_TERMINAL_S", 0.5)
    mark = tmp_path / "mark"
    with pytest.raises(PluginFailed) as caught:
        run(f"echo 'open https://login.example' >&2; (sleep 2; touch {mark}) & wait")
    assert str(caught.value).startswith(
        "The credential plug-in 'sh' of context test did not end within 0 s: open https://login.example. Run `sh -c "
    )
    time.sleep(2.2)
    assert not mark.exists()


def test_secret_words_of_a_plug_in_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_plugin, "WITHOUT_TERMINAL_S", 0.2)
    with pytest.raises(PluginFailed, match="Run it by hand") as caught:
        run("sleep 9 # --client-secret hidden")
    assert "hidden" not in str(caught.value)


def test_quoted_output_of_a_plug_in_steers_no_terminal() -> None:
    with pytest.raises(PluginFailed, match=r"status 1: \[31mno login\."):
        run(r"printf '\033[31mno \b login' >&2; exit 1")


def test_auth_provider_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kube_context, "WITHOUT_TERMINAL_S", 0.3)
    path = tmp_path / "kubeconfig"
    provider = {
        "name": "gcp",
        "config": {"cmd-path": "sleep", "cmd-args": "5", "token-key": "{.t}", "expiry-key": "{.e}"},
    }
    document = {
        "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1"}}],
        "users": [{"name": "u", "user": {"auth-provider": provider}}],
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "test",
    }
    path.write_text(yaml.safe_dump(document))
    context, began = KubeContext(str(path), None), time.monotonic()
    for _ in range(5):
        with pytest.raises(
            PluginFailed, match="auth-provider of context test gave no credentials within 0 s"
        ):
            context.configuration()
    assert time.monotonic() - began < 1.2, "each request waited"


def test_plug_in_is_told_of_its_cluster_and_variables() -> None:
    script = 'printf \'{"apiVersion": "%s", "status": {"token": "%s %s"}}\' '
    info = "$(echo $KUBERNETES_EXEC_INFO | base64 | tr -cd A-Za-z0-9+/=)"
    env = [{"name": "NAME", "value": "me"}]
    report = run(f'{script} "{VERSION}" "$NAME" "{info}"', provideClusterInfo=True, env=env)
    import base64

    name, info = report["token"].split()
    spec = json.loads(base64.b64decode(info))["spec"]
    assert name == "me"
    assert (spec["interactive"], spec["cluster"]["config"]) == (False, {"a": 1})


def test_kubeconfig_with_a_plug_in_comes_to_a_token_or_a_certificate(tmp_path: Path) -> None:
    def context(script: str) -> Any:
        path = tmp_path / "kubeconfig"
        document = {
            "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1"}}],
            "users": [{"name": "u", "user": {"exec": plugin(script)}}],
            "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(document))
        return KubeContext(str(path), None)

    assert headers_of(context(given(token="t")).configuration()) == {"authorization": "Bearer t"}
    files = context(given(clientCertificateData="cert", clientKeyData="key")).configuration()
    assert [Path(path).read_text() for path in (files.cert_file, files.key_file)] == ["cert", "key"]
    failing = context(f"echo asked >> {tmp_path}/asked; exit 3")
    for _ in range(3):
        with pytest.raises(PluginFailed, match="failed with exit status 3"):
            failing.configuration()
    assert (tmp_path / "asked").read_text() == "asked\n", "many pods ask at once"
