"""The fake EC2: the addresses of instances, and real SSH servers behind them."""

import io
from pathlib import Path
from typing import Any

import paramiko
import pytest

from provision.ssh_keys import KeyPair, new_key
from tests.fakes.aws_proxy.user import Aws, Net, fake_aws, until

pytestmark = pytest.mark.slow

pytest_plugins = ["tests.fakes.aws_proxy.fixtures"]


def nic(net: Net, **fields: Any) -> dict[str, Any]:
    return {"DeviceIndex": 0, "SubnetId": net.subnet, "Groups": [net.group]} | fields


class TestPublicAddresses:
    def test_subnet_default_decides_about_a_public_ip(self, aws: Aws, net: Net) -> None:
        aws.ec2.modify_subnet_attribute(SubnetId=net.subnet, MapPublicIpOnLaunch={"Value": True})
        (public,), (private,) = (
            aws.run(net),
            aws.run(NetworkInterfaces=[nic(net, AssociatePublicIpAddress=False)]),
        )
        several = [nic(net), nic(net, DeviceIndex=1)]
        (many,) = aws.run(NetworkInterfaces=several)
        until(lambda: aws.state(many["InstanceId"]) == "running")
        shown = [aws.instance(made["InstanceId"]).get("PublicIpAddress") for made in (public, private, many)]
        assert [address is not None for address in shown] == [True, False, False]


def test_instances_are_real_ssh_hosts_until_terminated(tmp_path: Path) -> None:
    of_key_pair, of_user_data, stranger = new_key(), new_key(), new_key()
    with fake_aws(tmp_path, hosts=True) as aws:
        port = 20000 + tmp_path.stat().st_ino % 10000
        aws.cloud.settings(ssh_port=port)
        net = aws.net()
        aws.ec2.import_key_pair(KeyName="k", PublicKeyMaterial=of_key_pair.public.encode())
        made = aws.run(
            KeyName="k",
            count=2,
            UserData=f"#cloud-config\nssh_authorized_keys: ['{of_user_data.public}']\n",
            NetworkInterfaces=[nic(net, AssociatePublicIpAddress=True)],
        )
        first, second = (entry["InstanceId"] for entry in made)
        until(lambda: all("PublicIpAddress" in aws.instance(name) for name in (first, second)))
        places = {name: aws.instance(name)["PublicIpAddress"] for name in (first, second)}
        assert places[first] != places[second] == made[1]["PrivateIpAddress"]
        until(lambda: _says(places[first], port, of_user_data) == "hello")
        assert _says(places[first], port, of_key_pair) == "hello"
        assert _says(places[first], port, stranger) is None
        aws.end(first)
        until(lambda: _says(places[first], port, of_user_data) is None)
        until(lambda: _says(places[second], port, of_user_data) == "hello")


def _says(address: str, port: int, key: KeyPair) -> str | None:
    """Return the output of a command on the host; `None`: no login."""
    pkey = paramiko.Ed25519Key.from_private_key(io.StringIO(key.private))
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    try:
        client.connect(
            address,
            port,
            "ubuntu",
            pkey=pkey,
            allow_agent=False,
            look_for_keys=False,
            timeout=60,
            banner_timeout=60,
        )
        _, stdout, _ = client.exec_command("echo hello")
        return stdout.read().decode().strip()
    except (OSError, paramiko.SSHException):
        return None
    finally:
        client.close()
