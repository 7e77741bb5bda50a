"""The only account of the cloud: tenancy, user, compartments, region, and the keys that sign requests.

It writes a client's files: an API key, a session token and a configuration file with the profiles DEFAULT and TOKEN.
"""

import base64
import hashlib
import json
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

REGION = "eu-frankfurt-1"
REGION_KEY = "FRA"
DOMAINS = tuple(f"Uocm:{REGION.upper()}-AD-{n}" for n in (1, 2, 3))
FAULT_DOMAINS = ("FAULT-DOMAIN-1", "FAULT-DOMAIN-2", "FAULT-DOMAIN-3")
TOKEN_LIFE_S = 12 * 3600


@dataclass(frozen=True, kw_only=True)
class Account:
    """The caller's identity and region."""

    key: rsa.RSAPrivateKey = field(repr=False)
    fingerprint: str
    tenancy: str
    user: str
    token: str = field(repr=False)
    compartments: dict[str, str]
    region: str = REGION

    @property
    def key_ids(self) -> dict[str, rsa.RSAPublicKey]:
        """Return the public keys of accepted signatures: the user's API key, and the session token."""
        public = self.key.public_key()
        return {f"{self.tenancy}/{self.user}/{self.fingerprint}": public, f"ST${self.token}": public}

    def has_compartment(self, identifier: str) -> bool:
        """Return whether resources may be made in the compartment."""
        return identifier == self.tenancy or identifier in self.compartments.values()

    def has_domain(self, name: str) -> bool:
        """Return whether an availability domain has that name."""
        return name in DOMAINS


def is_government(region: str) -> bool:
    """Return whether a region is one of the US Government."""
    return region.startswith("us-gov-") or region in ("us-langley-1", "us-luke-1")


def new_account(region: str = REGION) -> Account:
    """Create an account with a new key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashlib.md5(public, usedforsecurity=False).hexdigest()
    tenancy, user = _ocid("tenancy"), _ocid("user")
    return Account(
        key=key,
        fingerprint=":".join(digest[at : at + 2] for at in range(0, len(digest), 2)),
        tenancy=tenancy,
        user=user,
        token=_session_token(key, tenancy, user),
        compartments={"gpu": _ocid("compartment"), "network": _ocid("compartment")},
        region=region,
    )


def write_config(account: Account, home: Path) -> Path:
    """Write the key, the token and the configuration file; return the path of the last."""
    home.mkdir(parents=True, exist_ok=True)
    key_file, token_file, config = home / "oci_api_key.pem", home / "oci_token", home / "oci_config"
    _write(
        key_file,
        account.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()
        + "OCI_API_KEY\n",
    )
    _write(token_file, account.token)
    common = (
        f"fingerprint={account.fingerprint}\nkey_file={key_file}\n"
        f"tenancy={account.tenancy}\nregion={account.region}\n"
    )
    _write(
        config,
        f"[DEFAULT]\nuser={account.user}\n{common}\n[TOKEN]\n{common}security_token_file={token_file}\n",
    )
    return config


def _write(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def _session_token(key: rsa.RSAPrivateKey, tenancy: str, user: str) -> str:
    moment = int(time.time())
    claims: dict[str, Any] = {
        "sub": user,
        "tenant": tenancy,
        "iss": "authService.oracle.com",
        "iat": moment,
        "exp": moment + TOKEN_LIFE_S,
        "jti": secrets.token_hex(8),
    }
    signed = ".".join(
        _base64url(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT"}, claims)
    )
    signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{signed}.{_base64url(signature)}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _ocid(kind: str) -> str:
    unique = base64.b32encode(secrets.token_bytes(32)).decode().lower().rstrip("=")
    return f"ocid1.{kind}.oc1..aaaaaaaa{unique}"
