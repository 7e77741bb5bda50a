"""Verify signatures of requests: draft-cavage HTTP signatures as Oracle's services require them.

A pure check of a method, a target, headers and a body against known public keys. The signed headers and the maximum
age of a request follow the service's documentation.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from tests.fakes.oci.errors import unauthenticated

MAX_SKEW_S = 300

_PART = re.compile(r'(\w+)="([^"]*)"')
_ALWAYS = {"(request-target)", "host"}
_WITH_BODY = {"content-length", "content-type", "x-content-sha256"}


def verify(
    *,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    keys: Mapping[str, RSAPublicKey],
    now: datetime,
) -> None:
    """Raise `NotAuthenticated` unless the request was signed, as it is, with the key that it names.

    `headers` has names in lower case; `target` is path and query as sent.
    """
    authorization = headers.get("authorization", "")
    if not authorization.startswith("Signature "):
        raise unauthenticated("was not provided: there is no Signature in the header Authorization.")
    parts = dict(_PART.findall(authorization))
    if absent := {"keyId", "headers", "signature", "algorithm"} - parts.keys():
        raise unauthenticated(f"was not provided: the signature has no {', '.join(sorted(absent))}.")
    if parts["algorithm"] != "rsa-sha256" or parts.get("version", "1") != "1":
        raise unauthenticated("was incorrect: the algorithm is not rsa-sha256 in version 1.")
    key = keys.get(parts["keyId"])
    if key is None:
        raise unauthenticated(f"was incorrect: no such key: {parts['keyId'][:200]}.")
    signed = parts["headers"].split()
    _check_coverage(method, signed, headers)
    _check_date(headers["x-date" if "x-date" in signed else "date"], now)
    if "x-content-sha256" in signed:
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        if headers["x-content-sha256"] != digest:
            raise unauthenticated("was incorrect: x-content-sha256 is not the digest of the body.")
        if headers.get("content-length") != str(len(body)):
            raise unauthenticated("was incorrect: content-length is not the length of the body.")
    text = "\n".join(
        f"{name}: {f'{method.lower()} {target}' if name == '(request-target)' else headers[name]}"
        for name in signed
    )
    try:
        signature = base64.b64decode(parts["signature"], validate=True)
        key.verify(signature, text.encode(), padding.PKCS1v15(), hashes.SHA256())
    except (binascii.Error, InvalidSignature):
        raise unauthenticated("was incorrect: the signature does not fit the request.") from None


def _check_coverage(method: str, signed: list[str], headers: Mapping[str, str]) -> None:
    needed = set(_ALWAYS)
    if method in ("POST", "PUT", "PATCH"):
        needed |= _WITH_BODY
    if unsigned := needed - set(signed):
        raise unauthenticated(f"was incorrect: not signed: {', '.join(sorted(unsigned))}.")
    if not {"date", "x-date"} & set(signed):
        raise unauthenticated("was incorrect: neither date nor x-date is signed.")
    if absent := [name for name in signed if name != "(request-target)" and name not in headers]:
        raise unauthenticated(f"was incorrect: signed but not sent: {', '.join(absent)}.")


def _check_date(text: str, now: datetime) -> None:
    try:
        sent = parsedate_to_datetime(text)
        skew_s = abs((now - sent).total_seconds())
    except (ValueError, TypeError):
        raise unauthenticated("was incorrect: the date is no date of RFC 1123.") from None
    if skew_s > MAX_SKEW_S:
        raise unauthenticated("was incorrect: the date is more than five minutes from the service's clock.")
