"""Run the control plane inside the process of the tests, with the SDK's clients for it."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import oci
from oci._vendor import requests
from oci.autoscaling import AutoScalingClient
from oci.core import BlockstorageClient, ComputeClient, ComputeManagementClient, VirtualNetworkClient
from oci.core.models import (
    CreateInternetGatewayDetails,
    CreateNetworkSecurityGroupDetails,
    CreateSubnetDetails,
    CreateVcnDetails,
    CreateVnicDetails,
    InstanceSourceViaImageDetails,
    LaunchInstanceDetails,
)
from oci.exceptions import ServiceError
from oci.identity import IdentityClient
from oci.limits import LimitsClient
from oci.retry import NoneRetryStrategy
from oci.signer import Signer
from oci.work_requests import WorkRequestClient
from tests.fakes.control import Control
from tests.fakes.oci.account import DOMAINS, new_account, write_config
from tests.fakes.oci.images import IMAGES
from tests.fakes.oci.server import Server
from tests.fakes.oci.service import Service
from tests.fakes.oci.state import snapshot
from tests.fakes.oci.store import Cloud

AD = DOMAINS[0]
WAIT_S = 10.0


@dataclass(kw_only=True)
class World:
    """The cloud, how it is steered, and a client of every service."""

    cloud: Cloud
    control: Control
    url: str
    config_file: Path
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def compartment(self) -> str:
        return self.cloud.account.compartments["gpu"]

    def client(self, kind: Callable[..., Any], **more: Any) -> Any:
        return kind(self.config, service_endpoint=self.url, **more)

    @cached_property
    def compute(self) -> ComputeClient:
        return self.client(ComputeClient)

    @cached_property
    def management(self) -> ComputeManagementClient:
        return self.client(ComputeManagementClient)

    @cached_property
    def autoscaling(self) -> AutoScalingClient:
        # Unlike the other clients this one retries by default.
        return self.client(AutoScalingClient, retry_strategy=NoneRetryStrategy())

    @cached_property
    def network(self) -> VirtualNetworkClient:
        return self.client(VirtualNetworkClient)

    @cached_property
    def storage(self) -> BlockstorageClient:
        return self.client(BlockstorageClient)

    @cached_property
    def identity(self) -> IdentityClient:
        return self.client(IdentityClient)

    @cached_property
    def works(self) -> WorkRequestClient:
        return self.client(WorkRequestClient)

    @cached_property
    def limits(self) -> LimitsClient:
        return self.client(LimitsClient)

    @cached_property
    def signer(self) -> Signer:
        return Signer.from_config(self.config)

    def raw(self, method: str, path: str, *, signer: Any = None, **options: Any) -> Any:
        """Send a signed request without the SDK's models; `options` are those of requests."""
        return requests.request(
            method, self.url + path, auth=signer or self.signer, timeout=WAIT_S, **options
        )

    def settings(self, **changes: Any) -> None:
        self.control.change_settings(changes)

    def image(self, name: str = "Canonical-Ubuntu-22.04-2026.06.26-0") -> str:
        return next(image.id for image in IMAGES.values() if image.name == name)

    def vcn(self, cidr: str = "10.0.0.0/16", **fields: Any) -> Any:
        details = CreateVcnDetails(compartment_id=self.compartment, cidr_blocks=[cidr], **fields)
        return self.network.create_vcn(details).data

    def subnet(self, vcn: Any, cidr: str = "10.0.1.0/24", **fields: Any) -> Any:
        details = CreateSubnetDetails(
            compartment_id=self.compartment, vcn_id=vcn.id, cidr_block=cidr, **fields
        )
        return self.network.create_subnet(details).data

    def gateway(self, vcn: Any) -> Any:
        details = CreateInternetGatewayDetails(
            compartment_id=self.compartment, vcn_id=vcn.id, is_enabled=True
        )
        return self.network.create_internet_gateway(details).data

    def group(self, vcn: Any) -> Any:
        details = CreateNetworkSecurityGroupDetails(compartment_id=self.compartment, vcn_id=vcn.id)
        return self.network.create_network_security_group(details).data

    def details(self, subnet: Any, **fields: Any) -> LaunchInstanceDetails:
        vnic = fields.pop("vnic", {})
        size = fields.pop("boot_gb", None)
        image = fields.pop("image", None) or self.image()
        return LaunchInstanceDetails(
            **{
                "compartment_id": self.compartment,
                "availability_domain": AD,
                "shape": "VM.GPU.A10.1",
                "source_details": InstanceSourceViaImageDetails(image_id=image, boot_volume_size_in_gbs=size),
                "create_vnic_details": CreateVnicDetails(subnet_id=subnet.id, **vnic),
                **fields,
            }
        )

    def launch(self, subnet: Any, *, token: str | None = None, **fields: Any) -> Any:
        """Launch an instance; return the whole response, which has the work request in its headers."""
        more = {"opc_retry_token": token} if token else {}
        return self.compute.launch_instance(self.details(subnet, **fields), **more)

    def running(self, subnet: Any, **fields: Any) -> Any:
        """Launch an instance, and wait until it runs."""
        instance = self.launch(subnet, **fields).data
        return self.until(lambda: self.compute.get_instance(instance.id).data, "RUNNING")

    def until(self, get: Callable[[], Any], state: str) -> Any:
        """Wait until the result of `get` is in that state, and return it."""
        deadline = time.monotonic() + WAIT_S
        while True:
            result = get()
            now = getattr(result, "lifecycle_state", None) or result.status
            if now == state:
                return result
            assert time.monotonic() < deadline, f"{now}, not {state}"
            time.sleep(0.002)

    def until_gone(self, get: Callable[[], Any]) -> None:
        """Return once `get` answers with 404."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                get()
            except ServiceError as error:
                assert (error.status, error.code) == (404, "NotAuthorizedOrNotFound")
                return
            time.sleep(0.002)
        raise AssertionError("still there")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    account, control = new_account(), Control()
    cloud = Cloud(account, control)
    service = Service(cloud, control)
    control.snapshot = lambda: snapshot(cloud)
    control.on_reset = service.forget
    server = Server(0, service)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    path = write_config(account, tmp_path_factory.mktemp("oci"))
    config = dict(oci.config.from_file(str(path)))
    yield World(cloud=cloud, control=control, url=server.url, config_file=path, config=config)
    server.shutdown()
    server.server_close()
    thread.join()
    cloud.timers.close()


@pytest.fixture
def world(served: World) -> World:
    """Empty, and ten times as fast as it would be."""
    served.control.reset()
    served.settings(speed=10)
    return served


@dataclass(frozen=True)
class Refused:
    """An error that a call has to end with."""

    error: ServiceError

    def __contains__(self, text: str) -> bool:
        return text in str(self.error.message)


@pytest.fixture
def refused() -> Callable[..., Refused]:
    """Make a call that must be refused."""

    def call(status: int, code: str, act: Callable[..., Any], *words: Any, **options: Any) -> Refused:
        with pytest.raises(ServiceError) as caught:
            act(*words, **options)
        assert (caught.value.status, caught.value.code) == (status, code), caught.value.message
        assert caught.value.request_id
        return Refused(caught.value)

    return call
