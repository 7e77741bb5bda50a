"""Tokens for OKE's API servers: the address of a request that is signed as for OCI itself."""

import base64
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from provision.oci.credentials import Credentials

LASTS_S = 4 * 60
"""OKE takes a token for five minutes after its date."""
SIGNED = ("date", "authorization")


def make(credentials: Credentials, cluster: str) -> tuple[str, datetime]:
    """Return a token for the cluster of that OCID, and its end, without a request. Raises BadCredentials."""
    import oci
    import requests

    service: str = oci.regions.endpoint_for("container_engine", credentials.region)
    address = f"{service.removesuffix('/20180222')}/cluster_request/{cluster}"
    signed = requests.Request("GET", address, auth=credentials.signer()).prepare()
    query = urlencode({name: signed.headers[name] for name in SIGNED})
    token = base64.urlsafe_b64encode(f"{address}?{query}".encode()).decode()
    return token, datetime.now(UTC) + timedelta(seconds=LASTS_S)
