"""Calls to OCI: clients made when they are used, errors translated, retries, whole lists.

Requests and answers are plain JSON, as the service has them; the SDK signs requests and has the addresses.
"""

import os
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

import oci
from oci.base_client import OCIHTTPAdapter

from inventories.errors import InvalidInput
from inventories.threads import MAX_AT_ONCE
from provision.errors import Blocked, CloudError, Gone, Unclear
from provision.oci.credentials import Credentials
from provision.oci.errors import translate
from provision.reachable import resolve
from provision.retries import CONNECT_TIMEOUT_S, FIRST_READ_S, Retry
from provision.waiting import Clock, retry_while

Json = dict[str, Any]
T = TypeVar("T")

ENDPOINT_VARIABLE = "GPUCTL_OCI_ENDPOINT"
"""Variable with one address for all of OCI's services."""
TIMEOUT = (CONNECT_TIMEOUT_S, 60.0)
"""Timeout of a service that has answered once, and of a change."""
MAX_PAGES = 10_000
SETTLE_TIMEOUT_S = 60.0
APPEAR_TIMEOUT_S = 15.0

_CLIENTS = {
    "compute": ("oci.core.compute_client", "ComputeClient"),
    "management": ("oci.core.compute_management_client", "ComputeManagementClient"),
    "agent": (
        "oci.compute_instance_agent.compute_instance_agent_client",
        "ComputeInstanceAgentClient",
    ),
    "autoscaling": ("oci.autoscaling.auto_scaling_client", "AutoScalingClient"),
    "network": ("oci.core.virtual_network_client", "VirtualNetworkClient"),
    "storage": ("oci.core.blockstorage_client", "BlockstorageClient"),
    "identity": ("oci.identity.identity_client", "IdentityClient"),
    "limits": ("oci.limits.limits_client", "LimitsClient"),
    "container": ("oci.container_engine.container_engine_client", "ContainerEngineClient"),
    "balancer": ("oci.load_balancer.load_balancer_client", "LoadBalancerClient"),
    "work": ("oci.work_requests.work_request_client", "WorkRequestClient"),
}

_READS = ("get_", "list_", "create_compute_capacity_report")


class Api:
    """Calls to one account in one region. Thread-safe.

    Operations are named `compute.launch_instance`: a client, and its method's name in the SDK.
    """

    def __init__(self, credentials: Credentials, clock: Clock) -> None:
        self.credentials = credentials
        self.clock = clock
        self._endpoint = os.environ.get(ENDPOINT_VARIABLE) or None
        if self._endpoint and not self._endpoint.startswith(("http://", "https://")):
            raise InvalidInput(
                f"{ENDPOINT_VARIABLE} is '{self._endpoint}', which is no web address. Set it to "
                "`https://host[:port]`, or unset it."
            )
        self._retry = Retry(clock=clock)
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        self._signer = credentials.signer()
        self._signed_with = _stamp(credentials)

    @property
    def compartment(self) -> str:
        """OCID of the compartment of our resources."""
        return self.credentials.compartment

    @property
    def tenancy(self) -> str:
        """OCID of the account."""
        return self.credentials.tenancy

    def call(self, operation: str, *arguments: Any, again: bool | None = None, **options: Any) -> Any:
        """Make a call, with retries, and return the answer's body. Raises the errors of `provision.errors`.

        `again`: whether the call may be repeated after an unclear outcome. `None`: if it only reads, or has a retry
        token.
        """
        return self.response(operation, *arguments, again=again, **options).data

    def hint(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Make a call once, without retries, and return the answer's body: for an answer that is not worth a wait."""
        return self.hint_response(operation, *arguments, **options).data

    def hint_response(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Make a call once, and return the whole answer with its headers."""
        return self._once(operation, arguments, options)

    def response(self, operation: str, *arguments: Any, again: bool | None = None, **options: Any) -> Any:
        """Make a call, with retries, and return the whole answer with its headers."""
        if again is None:
            method = operation.partition(".")[2]
            again = method.startswith(_READS) or "opc_retry_token" in options
        service = operation.partition(".")[0]
        return self._retry.call(
            lambda: self._once(operation, arguments, options), again=again, service=service
        )

    def list_all(self, operation: str, *arguments: Any, **options: Any) -> list[Json]:
        """Return the items of all pages of a list, without the SDK's pagination, which has retries of its own."""
        items: list[Json] = []
        more: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            response = self.response(operation, *arguments, **options, **more)
            data = response.data
            items += data["items"] if isinstance(data, dict) else data
            page = response.headers.get("opc-next-page")
            if not page:
                return items
            more = {"page": page}
        raise CloudError(
            f"OCI's list does not end after {MAX_PAGES} pages: {operation}.", operation=operation
        )

    def listed(self, operation: str, **options: Any) -> list[Json]:
        """Return the items of all pages of a list of the compartment."""
        return self.list_all(operation, compartment_id=self.compartment, **options)

    def settled(self, do: Callable[[], T]) -> T:
        """Call `do`, which makes or changes a part of a network, until OCI takes it.

        OCI refuses it while the network or a resource that it needs is changing, and may not find a new resource for
        a moment.
        """
        began = self.clock.now()

        def transient(error: CloudError) -> bool:
            late = self.clock.now() - began > APPEAR_TIMEOUT_S
            return isinstance(error, Blocked) or (isinstance(error, Gone) and not late)

        return retry_while(self.clock, do, transient, SETTLE_TIMEOUT_S)

    def _once(self, operation: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        client, _, method = operation.partition(".")
        signed_with = self._signed_with
        try:
            try:
                used = self._client(client)
                if not method.startswith(_READS):
                    used.base_client.timeout = TIMEOUT
                response = getattr(used, method)(*arguments, **options)
                used.base_client.timeout = TIMEOUT
            except oci.exceptions.ServiceError as error:
                if error.status != 401 or not self._renew(signed_with):
                    raise
                response = getattr(self._client(client), method)(*arguments, **options)
        except oci.exceptions.ClientError as error:
            raise self.credentials.refused(error) from error
        except (oci.exceptions.ServiceError, OSError) as error:
            raise translate(
                error, method, compartment=self.compartment, advice=self.credentials.advice
            ) from error
        if isinstance(response.data, str):
            raise Unclear(
                f"OCI's answer to {method} is no JSON. Is a proxy in between?",
                operation=method,
                code="NoJson",
            )
        return response

    def _client(self, name: str) -> Any:
        with self._lock:
            if name in self._clients:
                return self._clients[name]
            module, cls = _CLIENTS[name]
            endpoint = {"service_endpoint": self._endpoint} if self._endpoint else {}
            client = getattr(import_module(module), cls)(
                dict(self.credentials.config),
                signer=self._signer,
                timeout=(CONNECT_TIMEOUT_S, FIRST_READ_S),
                retry_strategy=oci.retry.NoneRetryStrategy(),
                circuit_breaker_strategy=oci.circuit_breaker.NoCircuitBreakerStrategy(),
                skip_deserialization=True,
                **endpoint,
            )
        for scheme in ("http://", "https://"):
            client.base_client.session.mount(scheme, OCIHTTPAdapter(pool_maxsize=MAX_AT_ONCE))
        resolve(client.base_client.endpoint, "OCI")
        with self._lock:
            return self._clients.setdefault(name, client)

    def _renew(self, signed_with: int | None) -> bool:
        """Sign with the session token that the file has now. Returns whether it is a new one."""
        with self._lock:
            stamp = _stamp(self.credentials)
            if stamp is None or (stamp == signed_with and stamp == self._signed_with):
                return False
            if stamp != self._signed_with:
                self._signer = self.credentials.signer()
                self._signed_with = stamp
                for client in self._clients.values():
                    client.base_client.signer = self._signer
            return True


def _stamp(credentials: Credentials) -> int | None:
    """Return a number that changes with the session token's file. `None`: no such file."""
    try:
        return None if credentials.token_file is None else credentials.token_file.stat().st_mtime_ns
    except OSError:
        return None
