"""Signatures by API key and by session token, and the reasons for which they are refused."""

import datetime as dt
from email.utils import format_datetime
from pathlib import Path

import oci
import pytest
from oci.identity import IdentityClient
from oci.signer import Signer

from tests.fakes.oci.account import new_account

pytest_plugins = ["tests.fakes.oci.fixtures"]

VCNS = "/20160918/vcns"


class Old(Signer):
    """Signs as if it were another time."""

    def __init__(self, config, minutes):
        super().__init__(config["tenancy"], config["user"], config["fingerprint"], config["key_file"])
        self.moment = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=minutes)

    def __call__(self, request, enforce_content_headers=True):
        request.headers["date"] = format_datetime(self.moment, usegmt=True)
        return super().__call__(request, enforce_content_headers)


class Tampering(Signer):
    """Changes a request after it was signed."""

    def __init__(self, config, change):
        super().__init__(config["tenancy"], config["user"], config["fingerprint"], config["key_file"])
        self.change = change

    def __call__(self, request, enforce_content_headers=True):
        signed = super().__call__(request, enforce_content_headers)
        self.change(signed)
        return signed


def unsigned(answer):
    assert (answer.status_code, answer.json()["code"]) == (401, "NotAuthenticated"), answer.text
    return answer.json()["message"]


def test_unsigned_request_or_unknown_key_answers_401(world):
    def plain(request):
        return request

    assert "no Signature" in unsigned(world.raw("GET", VCNS, signer=plain))
    other = new_account()
    config = {**world.config, "user": other.user}
    assert "no such key" in unsigned(world.raw("GET", VCNS, signer=Signer.from_config(config)))


@pytest.mark.parametrize(("minutes", "status"), [(-6, 401), (-4, 200), (4, 200), (6, 401)])
def test_signature_date_may_be_five_minutes_off(world, minutes, status):
    query = {"compartmentId": world.compartment}
    answer = world.raw("GET", VCNS, signer=Old(world.config, minutes), params=query)
    assert answer.status_code == status
    if status == 401:
        assert "five minutes" in unsigned(answer)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda request: setattr(request, "url", request.url + "&limit=3"), "does not fit"),
        (lambda request: setattr(request, "body", b'{"displayName": "b"}'), "digest of the body"),
        (lambda request: request.headers.update({"content-type": "text/plain"}), "does not fit"),
        (lambda request: request.headers.update({"host": "elsewhere"}), "does not fit"),
        (lambda request: request.headers.pop("x-content-sha256"), "signed but not sent"),
        (
            lambda request: request.headers.update(
                {"authorization": request.headers["authorization"].replace(" x-content-sha256", "")}
            ),
            "not signed",
        ),
    ],
)
def test_request_changed_after_signing_is_refused(world, change, words):
    signer = Tampering(world.config, change)
    answer = world.raw("POST", VCNS, signer=signer, params={"a": "b"}, data=b'{"displayName": "a"}')
    assert words in unsigned(answer)


def test_session_token_is_accepted_and_a_forged_one_refused(world):
    config = dict(oci.config.from_file(str(world.config_file), "TOKEN"))
    token = Path(config["security_token_file"]).read_text()
    key = oci.signer.load_private_key_from_file(config["key_file"])
    signer = oci.auth.signers.SecurityTokenSigner(token, key)
    client = IdentityClient(config, signer=signer, service_endpoint=world.url)
    assert len(client.list_availability_domains(config["tenancy"]).data) == 3
    forged = oci.auth.signers.SecurityTokenSigner(token[:-4] + "AAAA", key)
    assert "no such key" in unsigned(world.raw("GET", VCNS, signer=forged))
