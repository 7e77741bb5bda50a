"""Test the trust in an API server with a certificate as EKS makes it, whose authority has no key identifier."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_address
from pathlib import Path
from threading import Thread

import pytest
import urllib3
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from kubernetes import client
from urllib3.util.ssl_ import create_urllib3_context

from inventories.kube_context import api_client, not_strict


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def authority(folder: Path) -> Path:
    """A folder with a certificate and key of a server and its authority's certificate, with no key identifiers."""
    folder.mkdir()
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("ca", "server")}
    names = {name: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in keys}
    now = datetime.now(UTC)
    for name, extension in {
        "ca": x509.BasicConstraints(ca=True, path_length=None),
        "server": x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]),
    }.items():
        built = (
            x509.CertificateBuilder()
            .subject_name(names[name])
            .issuer_name(names["ca"])
            .public_key(keys[name].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(extension, critical=name == "ca")
            .sign(keys["ca"], SHA256())
        )
        (folder / f"{name}.crt").write_bytes(built.public_bytes(Encoding.PEM))
    form = (Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    (folder / "server.key").write_bytes(keys["server"].private_bytes(*form))
    return folder


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return authority(tmp_path / "authority")


@pytest.fixture
def url(files: Path) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "server.crt", files / "server.key")
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_authority_without_a_key_identifier_is_taken_where_python_is_strict(url: str, files: Path) -> None:
    """Python is strict since 3.13."""
    strict = create_urllib3_context()
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    strict.load_verify_locations(files / "ca.crt")
    with (
        urllib3.PoolManager(ssl_context=strict, retries=False) as pool,
        pytest.raises(urllib3.exceptions.SSLError),
    ):
        pool.request("GET", url)
    with urllib3.PoolManager(ssl_context=not_strict(strict), retries=False) as pool:
        assert pool.request("GET", url).status == 200


def test_client_checks_that_the_servers_authority_is_the_one_it_knows(
    url: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = client.Configuration(host=url)
    settings.retries = False
    settings.ssl_ca_cert = str(files / "ca.crt")
    with api_client(settings) as api:
        assert api.rest_client.pool_manager.request("GET", url).status == 200
        context = api.rest_client.pool_manager.connection_from_url(url)._get_conn().ssl_context
        assert not context.verify_flags & ssl.VERIFY_X509_STRICT
        another = api.rest_client.pool_manager.connection_from_url(url)._get_conn()
        another.connect()
        another.close()
        assert another.ssl_context is not context, "threads would set up one context at once"
    settings.ssl_ca_cert = None
    monkeypatch.setenv("SSL_CERT_FILE", str(files / "ca.crt"))
    with api_client(settings) as api:
        status = api.rest_client.pool_manager.request("GET", url).status
        assert status == 200, "one that this computer trusts"
    settings.ssl_ca_cert = str(authority(files.parent / "another") / "ca.crt")
    with api_client(settings) as api, pytest.raises(urllib3.exceptions.SSLError):
        api.rest_client.pool_manager.request("GET", url)
