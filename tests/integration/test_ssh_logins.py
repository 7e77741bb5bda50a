"""Keys and configurations as people have them, against OpenSSH's own server and agent."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openssh import Server, needs_sshd, new_key, ssh_agent, sshd
from support import BIN

from inventories.ansible.inventory import read_hosts_file
from inventories.machine import Machine
from remote.errors import AuthenticationFailed, Unreachable
from remote.sessions.connect import connect
from remote.transport import host_keys, known_hosts, ssh_config
from remote.transport.paramiko_errors import ALGORITHMS

pytestmark = [pytest.mark.slow, needs_sshd]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with sshd(tmp_path_factory.mktemp("server") / "sshd", "MaxAuthTries 6") as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The .ssh of a user without keys and agent."""
    folder = tmp_path / "home" / ".ssh"
    folder.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


def greeting(server: Server, machine: Machine) -> bytes:
    node = connect(machine, server.cluster(machine), timeout_s=10)
    try:
        return node.run("echo hello").stdout
    finally:
        node.close()


def refusal(server: Server, machine: Machine) -> str:
    with pytest.raises(AuthenticationFailed) as caught:
        greeting(server, machine)
    return str(caught.value)


FORMATS = [("ed25519", "RFC4716"), ("rsa", "RFC4716"), ("rsa", "PEM"), ("ecdsa", "PEM"), ("ecdsa", "PKCS8")]


@pytest.mark.parametrize(("kind", "form"), FORMATS)
def test_key_with_passphrase_needs_agent_or_terminal(
    server: Server, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, form: str
) -> None:
    key = new_key(tmp_path / "my key", kind, "secret", form)
    server.authorize(key)
    machine = server.machine(key_file=key)
    output = refusal(server, machine)
    assert f"The key {key} has a passphrase, and there is no terminal to ask for it" in output
    assert output.endswith(f"ssh-add {shlex.quote(str(key))}")
    with ssh_agent(tmp_path / "agent", key) as socket:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        assert greeting(server, machine) == b"hello\n"


def test_public_and_putty_keys_are_named(server: Server, home: Path, tmp_path: Path) -> None:
    key = new_key(tmp_path / "id", "rsa")
    server.authorize(key)
    public = tmp_path / "id.pub"
    assert f"{public} is a public key. Name the private one: {key}" in refusal(
        server, server.machine(key_file=public)
    )
    putty = tmp_path / "id key.ppk"
    putty.write_text("PuTTY-User-Key-File-3: ssh-rsa\nEncryption: none\n")
    if shutil.which("puttygen"):
        subprocess.run(["puttygen", str(key), "-O", "private", "-o", str(putty)], check=True)
    output = refusal(server, server.machine(key_file=putty))
    command = output.partition("instead: ")[2]
    new = tmp_path / "id key.openssh"
    assert command == f"puttygen '{putty}' -O private-openssh -o '{new}'"
    if shutil.which("puttygen"):
        subprocess.run(command, shell=True, check=True)
        assert greeting(server, server.machine(key_file=new)) == b"hello\n"


def test_agent_of_many_keys_offers_the_named_one_alone(
    server: Server, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [new_key(tmp_path / f"id{number}") for number in range(8)]
    server.authorize(keys[7])
    with ssh_agent(tmp_path / "agent", *keys) as socket:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        output = refusal(server, server.machine())
        assert "hung up after 6 refused keys, before the right one (MaxAuthTries" in output
        assert greeting(server, server.machine(key_file=keys[7])) == b"hello\n"
        assert greeting(server, server.machine(key_file=Path(f"{keys[7]}.pub"))) == b"hello\n"
        (home / "config").write_text(f"Host 127.*\n  IdentityFile {keys[7]}.pub\n  IdentitiesOnly yes\n")
        assert greeting(server, server.machine()) == b"hello\n"
        (home / "config").write_text(f"Host 127.*\n  IdentityFile {keys[7]}\n")
        assert greeting(server, server.machine()) == b"hello\n", "a named key comes first"
        monkeypatch.delenv("SSH_AUTH_SOCK")
        keys[7].unlink()
        (home / "config").write_text(f"Host 127.*\n  IdentityFile {keys[7]}.pub\n  IdentityAgent {socket}\n")
        assert greeting(server, server.machine()) == b"hello\n"


def test_passphrase_is_asked_for_once_on_a_terminal(server: Server, home: Path, tmp_path: Path) -> None:
    if (expect := shutil.which("expect")) is None:
        pytest.skip("needs expect")
    key = new_key(tmp_path / "id", passphrase="secret")
    server.authorize(key)
    (home / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {server.host_key}\n")
    box = server.machine()
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(
        f"all:\n  hosts:\n    box: {{ansible_host: 127.0.0.1, ansible_port: {server.port}, ansible_user: {box.user}, "
        f"ansible_ssh_private_key_file: {key}, ansible_python_interpreter: {sys.executable}}}\n"
    )
    script = (
        f"set timeout 60\nspawn {BIN}/gpuctl up --hosts {hosts}\nexpect \"Enter passphrase for key '{key}':\"\n"
        'send "wrong\\r"\nexpect "Enter passphrase"\nsend "secret\\r"\nexpect "is up: 1 machine"\nexpect eof\n'
        "lassign [wait] pid spawnid os_error value\nexit $value\n"
    )
    env = {
        **os.environ,
        "GPUCTL_HOME": str(tmp_path / "gpuctl"),
        "HOME": str(home.parent),
        "SSH_AUTH_SOCK": "",
    }
    done = subprocess.run([expect, "-c", script], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("Enter passphrase") == 2
    assert "is up: 1 machine" in done.stdout


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("PubkeyAuthentication no\nPasswordAuthentication yes", "takes no keys for {user} (only: password)"),
        ("AuthenticationMethods publickey,password\nPasswordAuthentication yes", "demands more (password)"),
    ],
)
def test_server_that_takes_more_than_a_key_is_named(
    tmp_path: Path, home: Path, setting: str, expected: str
) -> None:
    key = new_key(tmp_path / "id")
    with sshd(tmp_path / "sshd", *setting.splitlines()) as server:
        server.authorize(key)
        machine = server.machine(key_file=key)
        output = refusal(server, machine)
    assert expected.format(user=machine.user) in output
    if "takes no keys" in output:
        assert output.endswith(f"ssh-copy-id -p {server.port} {machine.user}@127.0.0.1")


def test_key_file_of_the_configuration_that_does_not_exist_is_named(server: Server, home: Path) -> None:
    server.authorize(new_key(home / "id_ed25519"))
    (home / "config").write_text("Host 127.*\n  IdentityFile ~/.ssh/id_misspelt\n")
    sentence = refusal(server, server.machine())
    assert f"names {home}/id_misspelt as IdentityFile, and no such file exists" in sentence


@pytest.mark.parametrize("fault", ["mode", "line ends"])
def test_key_that_openssh_refuses_is_mended_as_advised(
    server: Server, home: Path, tmp_path: Path, fault: str
) -> None:
    key = new_key(tmp_path / "a key")
    server.authorize(key)
    if fault == "mode":
        key.chmod(0o644)
    else:
        key.write_bytes(key.read_bytes().replace(b"\n", b"\r\n"))
    host = f"    box:\n      ansible_host: 127.0.0.1\n      ansible_port: {server.port}\n"
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(f"all:\n  hosts:\n{host}      ansible_ssh_private_key_file: {key}\n")
    env = os.environ | {"GPUCTL_HOME": str(tmp_path / "gpuctl")}

    def gpuctl(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([BIN / "gpuctl", *words], env=env, capture_output=True, text=True, timeout=60)

    up = gpuctl("up", "--hosts", str(hosts), "--accept-new-host-keys", "--yes", "--no-wait")
    assert up.returncode == 0, up.stderr
    refused = gpuctl("ssh", "0", "--", "echo", "hello")
    assert refused.returncode == 2
    advice = refused.stderr.partition("Type: ")[2]
    subprocess.run(advice, shell=True, check=True)
    assert gpuctl("ssh", "0", "--", "echo", "hello").stdout == "hello\n"


@pytest.mark.parametrize(
    ("settings", "keyword"),
    [
        (["KexAlgorithms diffie-hellman-group1-sha1"], "KexAlgorithms"),
        (["KexAlgorithms sntrup761x25519-sha512@openssh.com"], "KexAlgorithms"),
        (["Ciphers chacha20-poly1305@openssh.com"], "Ciphers"),
        (["Ciphers aes128-ctr", "MACs umac-128-etm@openssh.com"], "MACs"),
    ],
)
def test_server_without_a_common_algorithm_is_told_which_to_add(
    tmp_path: Path, home: Path, settings: list[str], keyword: str, capfd: pytest.CaptureFixture[str]
) -> None:
    key = new_key(tmp_path / "id")
    with sshd(tmp_path / "sshd", *settings) as server:
        machine = server.machine(key_file=key)
        for attempt in (
            lambda: greeting(server, machine),
            lambda: host_keys.pin(machine, [], accept_new=True),
        ):
            with pytest.raises(Unreachable) as caught:
                attempt()
            assert f"to the line {keyword} of its /etc/ssh/sshd_config" in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err
    added = f"{keyword} {ALGORITHMS[{'KexAlgorithms': 'kex algorithm'}.get(keyword, keyword.lower())][1]}"
    other = [line for line in settings if not line.startswith(keyword)]
    with sshd(tmp_path / "mended", added, *other) as server:
        server.authorize(key)
        assert greeting(server, server.machine(key_file=key)) == b"hello\n"


def test_certificate_of_the_configuration_logs_in(server: Server, home: Path, tmp_path: Path) -> None:
    authority, key = new_key(tmp_path / "ca"), new_key(tmp_path / "id", "rsa")
    public = Path(f"{authority}.pub").read_text()
    (server.folder / "authorized_keys").write_text(f"cert-authority {public}")
    machine = server.machine()
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", machine.user, f"{key}.pub"]
    subprocess.run(sign, check=True)
    moved = (tmp_path / "id-cert.pub").rename(tmp_path / "elsewhere.pub")
    (home / "config").write_text(f"Host 127.*\n  IdentityFile {key}\n  CertificateFile {moved}\n")
    assert greeting(server, machine) == b"hello\n"


def test_aliases_and_proxies_of_the_configuration_are_followed(
    server: Server, home: Path, tmp_path: Path
) -> None:
    """Same as `ssh gpu` would resolve it: an alias behind a bastion that is itself behind another."""
    key = new_key(tmp_path / "id")
    server.authorize(key)
    (home / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {server.host_key}\nbox {server.host_key}\n")
    (home / "more").write_text(
        f"Host gpu\n  HostName 127.0.0.1\n  HostKeyAlias box\n  ProxyJump inner\n"
        f"Host inner\n  HostName 127.0.0.1\n  ProxyCommand ssh -F {home}/config -W %h:%p outer\n"
        "Host outer\n  HostName 127.0.0.1\n"
        f"Host *\n  Port {server.port}\n  IdentityFile {key}\n  UserKnownHostsFile {home}/known_hosts\n"
    )
    (home / "config").write_text(f"Include {home}/more\n")
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text("all: {hosts: {gpu: {}}}\n")
    (machine,) = read_hosts_file(hosts)
    assert (machine.host, machine.port, machine.ssh_alias) == ("127.0.0.1", server.port, "gpu")
    assert (machine.bastion, machine.private_ip) == ("inner", "127.0.0.1")
    pinned = host_keys.pin(machine, known_hosts.USER_FILES, accept_new=False)
    assert pinned.host_key == server.host_key
    assert greeting(server, pinned) == b"hello\n"
    cluster = server.cluster(pinned)
    config = tmp_path / "ssh_config"
    config.write_text(ssh_config.render([pinned], cluster.known_hosts_path))
    assert "ServerAliveInterval 15\n" in config.read_text()
    ssh = ["ssh", "-F", str(config), "-o", "BatchMode=yes", "gpu", "echo hello"]
    done = subprocess.run(ssh, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr

    broken = server.machine(proxy_command="sh -c 'echo no way there >&2; exit 3'", key_file=key)
    with pytest.raises(
        Unreachable, match=r"box: ProxyCommand `sh -c .* ended before SSH answered.*no way there"
    ):
        greeting(server, broken)
