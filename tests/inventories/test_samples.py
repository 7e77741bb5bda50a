import re
from dataclasses import replace
from pathlib import Path

import pytest

import inventories
from inventories.ansible.inventory import read_hosts_file
from inventories.machine import Machine
from inventories.specs.setup_steps import SetupStep
from inventories.specs.spec import Spec
from inventories.specs.validate import read_spec

SAMPLES = Path(inventories.__file__).parent / "samples"

SPECS = {
    "local-2.yaml": Spec(cluster="demo", provider="local", count=2),
    "oci-a10-2x2.yaml": Spec(
        cluster="a10", shape="VM.GPU.A10.2", count=2, region="us-ashburn-1",
        disk_gb=200, ttl_s=14400.0, max_cost_usd=50.0,
    ),
    "aws-g5-2x4.yaml": Spec(
        cluster="g5", shape="g5.12xlarge", count=2, region="us-east-1",
        disk_gb=200, spot=True, ttl_s=5400.0, max_cost_usd=40.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_sample_specs_are_read_as_expected(name):
    assert read_spec(SAMPLES / name) == SPECS[name]


NETWORK = {"public_ip": False, "ssh_port": 2222}
FAB = SetupStep(kind="fab", text="prepare_data --bucket my-data")
INSTALL = SetupStep(kind="run", text="sudo apt-get update && sudo apt-get install -y libsndfile1")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        (
            "oci-a10-2x2.yaml",
            {
                "image": "ocid1.image.oc1..", "driver": "auto", "spot": True, "ssh_cidr": "203.0.113.7/32",
                "profile": "work", "compartment": "ocid1.compartment.oc1..", "subnet_id": "ocid1.subnet.oc1..",
                "bastion": "opc@203.0.113.20", "setup": (INSTALL, FAB), **NETWORK,
            },
        ),
        (
            "aws-g5-2x4.yaml",
            {
                "image": "ami-0123456789abcdef0", "driver": "auto", "ssh_cidr": "203.0.113.7/32", "profile": "work",
                "subnet_id": "subnet-0123456789abcdef0", "bastion": "ec2-user@203.0.113.20:22",
                "setup": (INSTALL, FAB), **NETWORK,
            },
        ),
        ("local-2.yaml", {"setup": (SetupStep(kind="run", text="mkdir -p ~/data"), FAB)}),
    ],
)  # fmt: skip
def test_sample_specs_are_valid_with_comments_enabled(tmp_path, name, more):
    path = tmp_path / "spec.yaml"
    text = re.sub(r"^# ( *(- \S|[a-z_]+:($| *\S)))", r"\1", (SAMPLES / name).read_text(), flags=re.M)
    path.write_text(text)
    extra = {
        "setup": tuple(replace(step, folder=str(tmp_path)) if step is FAB else step for step in more["setup"])
    }
    assert read_spec(path) == replace(SPECS[name], **more | extra)


def test_sample_hosts_file_is_read_by_gpuctl_and_ansible(ansible_list):
    path = SAMPLES / "hosts.yaml"
    assert read_hosts_file(path) == (
        Machine(
            name="alpha", rank=0, state="unknown", host="192.0.2.11", user="ubuntu",
            private_ip="192.0.2.11", gpus=None, id="alpha",
        ),
        Machine(
            name="beta", rank=1, state="unknown", host="192.0.2.12", port=2222, user="trainer",
            private_ip="10.0.0.12", gpus=2, id="beta", shape="two A10 under the desk", python="/usr/bin/python3.12",
        ),
    )  # fmt: skip
    assert ansible_list(path)["gpu"]["hosts"] == ["alpha", "beta"]


def test_samples_folder_has_only_tested_files():
    assert {path.name for path in SAMPLES.iterdir()} == {*SPECS, "hosts.yaml"}
