"""The control plane as a process: its configuration files, the control interface, its hosts, the command line."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from base64 import b64encode
from pathlib import Path

import asyncssh
import oci
import pytest
from oci.core import ComputeClient, VirtualNetworkClient, models
from oci.pagination import list_call_get_all_results as every

from provision.ssh_keys import make_key
from tests.fakes.client import ROOT, start_fake

AD = "Uocm:EU-FRANKFURT-1-AD-1"
IMAGE = "Canonical-Ubuntu-24.04-2026.06.26-0"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with start_fake("oci", tmp_path_factory.mktemp("oci")) as cloud:
        yield cloud


@pytest.fixture
def cloud(running):
    running.reset()
    running.settings(speed=10)
    return running


class Clients:
    """Clients of the SDK, configured only with the fake's own files."""

    def __init__(self, cloud):
        self.config = dict(oci.config.from_file(cloud.env["OCI_CONFIG_FILE"]))
        self.tenancy = self.config["tenancy"]
        endpoint = cloud.env["GPUCTL_OCI_ENDPOINT"]
        self.compute = ComputeClient(self.config, service_endpoint=endpoint)
        self.network = VirtualNetworkClient(self.config, service_endpoint=endpoint)

    def subnet(self):
        vcn = self.network.create_vcn(
            models.CreateVcnDetails(
                compartment_id=self.tenancy, cidr_block="10.0.0.0/16", freeform_tags={"gpuctl": "1"}
            )
        ).data
        return self.network.create_subnet(
            models.CreateSubnetDetails(compartment_id=self.tenancy, vcn_id=vcn.id, cidr_block="10.0.0.0/24")
        ).data

    def launch(self, subnet, **fields):
        image = every(self.compute.list_images, self.tenancy, display_name=IMAGE).data[0]
        details = models.LaunchInstanceDetails(
            compartment_id=self.tenancy,
            availability_domain=AD,
            shape="VM.GPU.A10.1",
            source_details=models.InstanceSourceViaImageDetails(image_id=image.id),
            create_vnic_details=models.CreateVnicDetails(subnet_id=subnet.id),
            **fields,
        )
        return self.compute.launch_instance(details).data


@pytest.fixture
def clients(cloud):
    return Clients(cloud)


def test_fake_oci_writes_its_keys_with_mode_600(cloud):
    config = Path(cloud.env["OCI_CONFIG_FILE"])
    for path in (config, config.parent / "oci_api_key.pem", config.parent / "oci_token"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert cloud.url.startswith("http://127.0.0.1:")


def test_fake_oci_takes_faults_and_settings_over_http(cloud, clients):
    subnet = clients.subnet()
    cloud.fault(operation="Launch*", nth=2, status=500, code="InternalError", message="Out of host capacity.")
    cloud.settings(launch_s=600)
    instance = clients.launch(subnet, freeform_tags={"gpuctl": "1"})
    with pytest.raises(oci.exceptions.ServiceError, match="Out of host capacity"):
        clients.launch(subnet)
    assert [entry["id"] for entry in cloud.live_instances()] == [instance.id]
    assert [entry.get("kind", "instance") for entry in cloud.owned()] == ["instance", "vcn"]
    assert [call["status"] for call in cloud.calls("LaunchInstance", mutating=True)] == [200, 500]
    clients.compute.terminate_instance(instance.id)
    assert cloud.live_instances() == []
    cloud.reset()
    assert cloud.state()["resources"] == []
    assert clients.compute.list_instances(clients.tenancy).data == []


@pytest.mark.parametrize("end", ["SIGTERM", "SIGINT", "stdin"])
def test_fake_oci_exits_0_on_signals_and_closed_stdin(tmp_path, end):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.oci", "--home", str(tmp_path), "--die-with-stdin"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert json.loads(process.stdout.readline())["pid"] == process.pid
        if end == "stdin":
            process.stdin.close()
        else:
            process.send_signal(getattr(signal, end))
        assert process.wait(10) == 0


def test_instances_are_real_ssh_hosts_until_terminated(tmp_path):
    """User-data's key and the metadata's key let in; the address is the VNIC's; terminated is gone."""
    keys = [tmp_path / "one", tmp_path / "two"]
    public = [make_key(key) for key in keys]
    user_data = f"#cloud-config\nssh_authorized_keys: ['{public[0]}']\n"

    with start_fake("oci", tmp_path, hosts=True) as cloud:
        clients = Clients(cloud)
        metadata = {
            "user_data": b64encode(user_data.encode()).decode(),
            "ssh_authorized_keys": f"{public[1]}\n",
        }
        instance = clients.launch(clients.subnet(), metadata=metadata)
        deadline = time.monotonic() + 20
        while clients.compute.get_instance(instance.id).data.lifecycle_state != "RUNNING":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        attachments = every(clients.compute.list_vnic_attachments, clients.tenancy).data
        vnic = clients.network.get_vnic(attachments[0].vnic_id).data
        assert vnic.public_ip == vnic.private_ip
        assert vnic.public_ip.startswith("127.77.")
        for key in keys:
            assert _ssh(vnic.public_ip, key, deadline) == "hello"
        clients.compute.instance_action(instance.id, "RESET")
        _until_refused(vnic.public_ip, deadline)
        assert _ssh(vnic.public_ip, keys[0], deadline) == "hello"
        clients.compute.terminate_instance(instance.id)
        _until_refused(vnic.public_ip, deadline)


def _ssh(address, key, deadline):
    async def once():
        async with asyncssh.connect(
            address, 2222, username="ubuntu", client_keys=[str(key)], known_hosts=None, config=None
        ) as connection:
            return (await connection.run("echo hello")).stdout.strip()

    while True:
        try:
            return asyncio.run(once())
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _until_refused(address, deadline):
    while time.monotonic() < deadline:
        try:
            socket.create_connection((address, 2222), timeout=1).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.01)
    raise AssertionError("the host is still there")
