"""A service that does not answer: said soon, and not as if something had been done."""

import os
import pty
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from clocks import StepClock
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from inventories.errors import InvalidInput
from provision.aws import credentials as aws_credentials
from provision.aws.api import Api as AwsApi
from provision.errors import BadCredentials, NoAnswer
from provision.oci.api import Api as OciApi
from provision.oci.credentials import Credentials, find
from provision.reachable import resolve
from provision.records import Target
from provision.retries import FIRST_ANSWER_S, UNCLEAR_FOR_S, Retry
from provision.waiting import SystemClock


def credentials(folder: Path) -> Credentials:
    """Return a configuration of OCI with an unregistered key."""
    key = rsa.generate_private_key(65537, 2048)
    form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(key.private_bytes(*form))
    (folder / "config").write_text(
        f"[DEFAULT]\nuser=ocid1.user.oc1..a\ntenancy=ocid1.tenancy.oc1..a\nregion=us-ashburn-1\n"
        f"fingerprint={':'.join(['11'] * 16)}\nkey_file={folder}/key.pem\n"
    )
    return find(Target(provider="oci"), {"OCI_CLI_CONFIG_FILE": str(folder / "config")})


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_service_that_never_answered_is_given_up_soon_and_another_later() -> None:
    clock = StepClock()
    retry = Retry(clock=clock)

    def fail() -> str:
        raise NoAnswer("no network")

    with pytest.raises(NoAnswer):
        retry.call(fail, again=True)
    assert clock.time <= FIRST_ANSWER_S
    assert retry.call(lambda: "done", again=True) == "done"
    began = clock.time
    with pytest.raises(NoAnswer):
        retry.call(fail, again=True)
    assert clock.time - began > UNCLEAR_FOR_S / 2


@pytest.mark.parametrize(
    "url", ["https://nosuch.invalid", "https://a.{dualStack?ds.oci.:}nosuch.invalid/2016"]
)
def test_name_that_can_not_be_resolved_is_told(url: str) -> None:
    with pytest.raises(NoAnswer, match=r"nosuch\.invalid: .*Check this computer's network"):
        resolve(url, "OCI")


@pytest.mark.parametrize("server", ["http://127.0.0.1:9", "http://nosuch.invalid", "silent"])
def test_both_clouds_say_soon_that_they_do_not_answer(
    server: str, silent: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = silent if server == "silent" else server
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("GPUCTL_OCI_ENDPOINT", url)
    oci = OciApi(credentials(tmp_path), SystemClock())
    for call in (
        AwsApi(region="us-east-1", profile=None, clock=SystemClock()).account,
        lambda: oci.call("compute.list_instances", oci.tenancy),
    ):
        began = time.monotonic()
        with pytest.raises(NoAnswer) as caught:
            call()
        assert time.monotonic() - began < 30, "the SDKs' own limits are minutes"
        assert "does not answer" in str(caught.value)
        assert "It is not known" not in str(caught.value)


def test_certificate_that_is_not_trusted_is_no_reason_to_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = ["-keyout", str(tmp_path / "tls.key"), "-out", str(tmp_path / "tls.crt")]
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=proxy",
            *files,
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"https://127.0.0.1:{server.server_address[1]}"
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (
        ("AWS_ENDPOINT_URL", url),
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GPUCTL_OCI_ENDPOINT", url)
    oci = OciApi(credentials(tmp_path), SystemClock())
    began = time.monotonic()
    try:
        with pytest.raises(NoAnswer, match=r"CERTIFICATE_VERIFY_FAILED.*: export AWS_CA_BUNDLE=FILE\.$"):
            AwsApi(region="us-east-1", profile=None, clock=SystemClock()).account()
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nosuch.pem")
        with pytest.raises(NoAnswer, match=r": export REQUESTS_CA_BUNDLE=FILE\. It is '/nosuch\.pem' now\.$"):
            oci.call("compute.list_instances", oci.tenancy)
    finally:
        server.shutdown()
        server.server_close()
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[default]\nregion=a\n[default]\nregion=b\n", "line 3: section 'default' already exists"),
        ("[default]\nregion=a\nregion=b\n", "line 3: option 'region' in section 'default' already exists"),
        ("aws_secret_access_key=hush\n", "line 1 is in no section"),
        ("\ufeff[default]\r\nregion=a\r\n", "it begins with a byte order mark"),
    ],
)
def test_file_of_settings_that_is_no_ini_is_told_with_its_line(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "the config"
    file.write_text(text, newline="")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    with pytest.raises(BadCredentials) as aws:
        AwsApi(region="us-east-1", profile=None, clock=StepClock())
    with pytest.raises(BadCredentials) as oci:
        find(Target(provider="oci"), {"OCI_CLI_CONFIG_FILE": str(file)})
    for error in map(str, (aws.value, oci.value)):
        assert message in error
        assert "hush" not in error
        if "byte order mark" in message:
            subprocess.run(error.partition("Remove that: ")[2].removesuffix("."), shell=True, check=True)
            assert file.read_bytes().startswith(b"[default]")


def test_code_that_nobody_types_in_time_leaves_the_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, screen = pty.openpty()
    monkeypatch.setattr(aws_credentials, "TERMINAL", Path(os.ttyname(screen)))
    monkeypatch.setattr(aws_credentials, "CODE_S", 0.2)
    with pytest.raises(BadCredentials, match="none was typed within 0 s"):
        aws_credentials._ask_code("MFA code: ")
    os.write(keyboard, b"ls\n")
    assert os.read(screen, 9) == b"ls\n", "the next line is the shell's"
    os.write(keyboard, b"123456\n")
    assert aws_credentials._ask_code("MFA code: ") == "123456"
    os.close(keyboard)
    os.close(screen)


def test_empty_profile_variable_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "")
    with pytest.raises(BadCredentials, match=r"unset AWS_PROFILE AWS_DEFAULT_PROFILE$"):
        AwsApi(region="us-east-1", profile=None, clock=StepClock())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("fingerprint=SHA256:abc", "fingerprint is malformed. A fingerprint has 16 pairs"),
        ("key_file=/nosuch.pem", "key_file's value '/nosuch.pem'"),
        ("key_file={}/ec.pem", "the key is no RSA key"),
        ("key_file={}/locked.pem", "the key needs a passphrase, and the profile has none"),
        ("region=us-ashbrun-1", "did you mean 'us-ashburn-1'?"),
    ],
)
def test_configuration_of_oci_that_can_not_be_used_is_told(
    changed: str, message: str, tmp_path: Path
) -> None:
    credentials(tmp_path)
    key = ec.generate_private_key(ec.SECP256R1())
    for name, cipher in (("ec", NoEncryption()), ("locked", BestAvailableEncryption(b"secret"))):
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, cipher)
        (tmp_path / f"{name}.pem").write_bytes(text)
    file = tmp_path / "config"
    lines = {line.partition("=")[0]: line for line in file.read_text().splitlines()}
    lines[changed.partition("=")[0]] = changed.format(tmp_path)
    file.write_text("\n".join(lines.values()))
    with pytest.raises((BadCredentials, InvalidInput)) as caught:
        find(Target(provider="oci"), {"OCI_CLI_CONFIG_FILE": str(file)}).signer()
    assert message in str(caught.value)


CONFIG = """
[profile text]
credential_process = /bin/echo not json
[profile list]
credential_process = /bin/echo [1]
[profile missing]
credential_process = /nosuch/program
[profile quote]
credential_process = sh -c "echo
[profile nosource]
role_arn = arn:aws:iam::123456789012:role/gpu
source_profile = nothere
[profile web]
role_arn = arn:aws:iam::123456789012:role/gpu
web_identity_token_file = /nosuch/token
[profile base]
aws_access_key_id = a
aws_secret_access_key = b
[profile mfa]
role_arn = arn:aws:iam::123456789012:role/gpu
source_profile = base
mfa_serial = arn:aws:iam::123456789012:mfa/me
"""


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("text", "their source gave no JSON of credentials"),
        ("list", "their source gave no JSON of credentials"),
        ("missing", "'/nosuch/program': No such file"),
        ("quote", "No closing quotation"),
        ("nosource", 'The source_profile "nothere" referenced in the profile "nosource" does not exist'),
        ("web", "'/nosuch/token': No such file"),
        ("mfa", "aws configure export-credentials --profile mfa --format env"),
    ],
)
def test_configuration_of_aws_that_can_not_be_used_is_told(
    profile: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(CONFIG)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setattr("provision.aws.credentials.TERMINAL", tmp_path / "no-terminal")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadCredentials) as caught:
        AwsApi(region="us-east-1", profile=profile, clock=StepClock()).account()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("AWS_ENDPOINT_URL", "localhost:1234", "Invalid endpoint: localhost:1234. Write it with `http://`"),
        ("AWS_RETRY_MODE", "nosuch", 'Invalid value provided to "mode": "nosuch"'),
    ],
)
def test_setting_of_aws_that_can_not_be_used_is_told(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidInput) as caught:
        AwsApi(region="us-east-1", profile=None, clock=StepClock()).account()
    assert message in str(caught.value)
