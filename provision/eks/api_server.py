"""Whether a new API server answers: its name in DNS and its certificate come some time after EKS calls it active."""

import base64
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from provision.clock import Clock
from provision.cloud.records import CloudCluster
from provision.eks import names, tokens
from provision.errors import BadCredentials
from provision.provider import Say
from provision.wait import wait_until

ANSWERS_WITHIN_S = 600.0
TIMEOUT_S = 10.0


def wait_ready(clock: Clock, cluster: CloudCluster, told: Mapping[str, Any], say: Say) -> None:
    """Until it says that it is ready. Raises BadCredentials where it knows us not, CreateFailed at the deadline."""
    refused_until = clock.now() + ANSWERS_WITHIN_S / 2

    def look() -> tuple[bool | None, str]:
        status, why = _ask(cluster, told)
        if status in (401, 403) and clock.now() > refused_until:
            raise BadCredentials(
                f"The API server {told['endpoint']} does not let us in ({status}): its access entries lack who calls."
            )
        return (True if status == 200 else None), why

    wait_until("the API server", look, timeout_s=ANSWERS_WITHIN_S, clock=clock, say=say)


def _ask(cluster: CloudCluster, told: Mapping[str, Any]) -> tuple[int | None, str]:
    """The status of an answer, and what is wrong."""
    region = cluster.target.region
    assert region is not None
    token, _ = tokens.make(names.cluster_name(cluster), region, cluster.target.profile)
    request = urllib.request.Request(  # noqa: S310 - the address is EKS's own
        f"{told['endpoint']}/readyz", headers={"Authorization": f"Bearer {token}"}
    )
    authority = base64.b64decode(told.get("certificateAuthority", {}).get("data") or "").decode()
    context = ssl.create_default_context(cadata=authority) if authority else None
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:  # noqa: S310
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, f"it answers {error.code}"
    except OSError as error:
        return None, f"it does not answer: {getattr(error, 'reason', None) or error}"
