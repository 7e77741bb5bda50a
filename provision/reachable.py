"""Resolve the names of clouds' servers within a deadline, which the system's resolver does not have."""

import os
import re
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from inventories.threads import within
from provision.errors import NoAnswer, Unclear

RESOLVE_S = 4.0
BUNDLES = {"AWS": "AWS_CA_BUNDLE"}
"""Variable with which a service's SDK looks for CA certificates first. Others: REQUESTS_CA_BUNDLE."""


def resolve(url: str, service: str) -> None:
    """Resolve the name of the server at `url`, or of the proxy that leads there. Raises NoAnswer.

    `service`: its name for people, `AWS`.
    """
    # OCI's SDK has parts of names in braces that it fills in with each request.
    parts = urlsplit(re.sub(r"\{[^}]*\}", "", url))
    proxy = None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)
    host = (urlsplit(proxy).hostname if proxy else parts.hostname) or ""
    if not host:
        raise no_answer(
            service, f"{parts.scheme.upper()}_PROXY is no web address" if proxy else f"no server in '{url}'"
        )
    try:
        within(RESOLVE_S, lambda: socket.getaddrinfo(host, None), what="the name server did not answer")
    except (OSError, UnicodeError) as error:
        raise no_answer(service, f"{host}: {getattr(error, 'strerror', None) or error}") from error


def no_answer(service: str, reason: str, operation: str = "", *, reached: bool = False) -> Unclear:
    """Return the error for a service that did not answer.

    `operation`: the call, as the service names it. `reached`: the connection was there, and was lost.
    """
    call = f" ({operation})" if operation else ""
    problem = "does not answer"
    advice = "this computer's network, and HTTPS_PROXY if it needs a proxy, and run the command again."
    if "certificate" in reason.lower() or "SSL" in reason:
        problem, bundle = "can't be reached safely", BUNDLES.get(service, "REQUESTS_CA_BUNDLE")
        current = f" It is '{os.environ[bundle]}' now." if os.environ.get(bundle) else ""
        advice = (
            "this computer's clock. If a proxy or firewall of your network reads TLS, name a file with its CA "
            f"certificate: export {bundle}=FILE.{current}"
        )
    return (Unclear if reached else NoAnswer)(
        f"{service} {problem}{call}: {reason.rstrip('.')}. Check {advice}",
        operation=operation,
    )
