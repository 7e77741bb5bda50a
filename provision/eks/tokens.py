"""Tokens for EKS's API servers: an address of STS, signed for a minute."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from provision.aws.credentials import load, new_session
from provision.errors import BadCredentials

SIGNED_FOR_S = 60
LASTS_S = 14 * 60
"""Lifetime of a token: EKS takes it for a quarter of an hour."""
CLUSTER_HEADER = "x-k8s-aws-id"
PREFIX = "k8s-aws-v1."


def make(cluster: str, region: str, profile: str | None) -> tuple[str, datetime]:
    """Return a token for the Kubernetes cluster of that name, and its end. Raises BadCredentials."""
    from botocore.signers import RequestSigner

    session = new_session(profile, region)
    credentials = load(session)
    if credentials is None:
        raise BadCredentials("There are no credentials for AWS here. Log in, or name a --profile.")
    client: Any = session.client("sts", region_name=region)
    signer = RequestSigner(
        client.meta.service_model.service_id,
        region,
        "sts",
        "v4",
        credentials,
        session.events,
    )
    address = signer.generate_presigned_url(
        {
            "method": "GET",
            "url": f"{client.meta.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15",
            "body": {},
            "headers": {CLUSTER_HEADER: cluster},
            "context": {},
        },
        region_name=region,
        expires_in=SIGNED_FOR_S,
        operation_name="",
    )
    text = base64.urlsafe_b64encode(address.encode()).decode().rstrip("=")
    return PREFIX + text, datetime.now(UTC) + timedelta(seconds=LASTS_S)
