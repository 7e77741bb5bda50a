"""Test the parts of a takeover that need no cloud: user-data, ranges, scripts."""

import pytest

from provision.oci.run_command import boot_command, script_to_add
from provision.rented.adoption import missing_ranges
from provision.rented.launch.user_data import read_user_data, user_data
from provision.ssh_keys import new_key

KEY = "ssh-ed25519 AAAA"


def test_user_data_gives_back_login_host_key_and_record() -> None:
    key = new_key()
    record = {"name": "demo", "bastion": "me@\n# gpuctl: {}"}
    text = user_data(
        user="opc",
        authorized_key=KEY,
        host_private_key=key.private,
        host_public_key=key.public,
        ssh_port=22,
        expires_at=None,
        record=record,
    )
    boot = read_user_data(text)
    assert boot is not None
    assert (boot.user, boot.host_key, boot.record) == ("opc", key.public, record)


@pytest.mark.parametrize("text", ["", "#!/bin/sh\ntrue\n", "#cloud-config\n# gpuctl: {}\nuser: me\n"])
def test_other_user_data_gives_nothing(text: str) -> None:
    assert read_user_data(text) is None


@pytest.mark.parametrize(
    ("needed", "admitted", "missing"),
    [
        (("192.0.2.7/32",), ("192.0.2.0/24",), ()),
        (("192.0.2.7/32",), ("2001:db8::/32", "198.51.100.1/32"), ("192.0.2.7/32",)),
        (("0.0.0.0/0",), ("192.0.2.0/24",), ("0.0.0.0/0",)),
    ],
)
def test_only_ranges_without_a_wider_one_are_missing(
    needed: tuple[str, ...], admitted: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    assert missing_ranges(needed, admitted) == missing


def test_run_command_uses_exactly_the_command_that_sudo_allows() -> None:
    command = "/usr/bin/tee -a /home/opc/.ssh/authorized_keys"
    assert script_to_add("opc", KEY) == f"set -o pipefail; echo '{KEY}' | sudo -n -u opc {command}"
    assert boot_command("opc") == (
        f"(umask 337; echo 'ocarun ALL=(opc) NOPASSWD: {command}' >/etc/sudoers.d/101-gpuctl-run-command)"
    )
