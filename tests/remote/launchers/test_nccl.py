"""Test the NCCL settings for a node's network, and the choices that NCCL logs."""

from pathlib import Path

import pytest
from node_facts import facts

from remote.facts import RdmaDevice
from remote.launchers import nccl
from remote.node.checks.facts import cloud as cloud_of
from remote.node.checks.facts import rdma_devices
from remote.node.runs import nccl_log

ENS3 = {"NCCL_SOCKET_IFNAME": "=ens3", "NCCL_SOCKET_FAMILY": "AF_INET", "GLOO_SOCKET_IFNAME": "ens3"}
SOCKETS = {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}


def roce(number: int, *interfaces: str, addressed: bool = True) -> RdmaDevice:
    return RdmaDevice(name=f"mlx5_{number}", driver="mlx5_core", interfaces=interfaces, addressed=addressed)


EFA = RdmaDevice(name="rdmap0s6", driver="efa", interfaces=(), addressed=False)


@pytest.mark.parametrize(
    ("cloud", "gpu", "rdma", "nodes", "more"),
    [
        pytest.param("oci", "NVIDIA A10", (), 2, SOCKETS, id="oci-tcp"),
        pytest.param("oci", "NVIDIA A10", (), 1, {}, id="one-node-needs-no-network"),
        pytest.param("oci", None, (), 2, {}, id="no-gpu-no-nccl"),
        pytest.param(
            "oci", "NVIDIA A10", (roce(0, "ens3"),), 2, {**SOCKETS, "NCCL_IB_DISABLE": "1"},
            id="oci-the-vcn-carries-no-rdma",
        ),
        pytest.param(
            "oci", "NVIDIA A100-SXM4-40GB", (roce(4, "ens3"), roce(5, "rdma0"), roce(6, "rdma1")), 2,
            {
                **SOCKETS, "NCCL_IB_HCA": "=mlx5_5,mlx5_6", "NCCL_IB_SL": "0", "NCCL_IB_TC": "41",
                "NCCL_IB_GID_INDEX": "3", "NCCL_IGNORE_CPU_AFFINITY": "1", "NCCL_IB_QPS_PER_CONNECTION": "4",
            },
            id="oci-a100",
        ),
        pytest.param(
            "oci", "NVIDIA H100 80GB HBM3", (roce(0, "rdma0"), roce(2, "ens3"), roce(11, "ens9", addressed=False)), 2,
            {
                **SOCKETS, "NCCL_IB_HCA": "=mlx5_0", "NCCL_IB_SL": "0", "NCCL_IB_TC": "41",
                "NCCL_IB_GID_INDEX": "3", "NCCL_IGNORE_CPU_AFFINITY": "1", "NCCL_IB_QPS_PER_CONNECTION": "1",
                "NCCL_IB_SPLIT_DATA_ON_QPS": "0", "NCCL_IB_TIMEOUT": "22", "NCCL_CUMEM_ENABLE": "0",
            },
            id="oci-h100",
        ),
        pytest.param("aws", "NVIDIA A10G", (), 2, {}, id="aws-tcp-is-tuned-by-nccl"),
        pytest.param("aws", "NVIDIA H100 80GB HBM3", (EFA,), 2, {"FI_PROVIDER": "efa"}, id="aws-p5"),
        pytest.param(
            "aws", "NVIDIA A100-SXM4-40GB", (EFA,), 2, {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"},
            id="aws-p4d",
        ),
        pytest.param("aws", "NVIDIA A10G", (EFA,), 2, {"FI_PROVIDER": "efa"}, id="aws-g5-whose-efa-has-no-rdma"),
        pytest.param("aws", "Tesla T4", (EFA,), 2, {"FI_PROVIDER": "efa"}, id="aws-g4dn-whose-efa-has-no-rdma"),
        pytest.param(None, "NVIDIA H200", (roce(0, "ib0"),), 2, SOCKETS, id="elsewhere-rdma-is-left-to-nccl"),
    ],
)  # fmt: skip
def test_nccl_variables_fit_cloud_gpu_and_rdma(
    cloud: str | None, gpu: str | None, rdma: tuple[RdmaDevice, ...], nodes: int, more: dict[str, str]
) -> None:
    gpus = ({"index": 0, "name": gpu},) if gpu else ()
    made = nccl.variables(facts(cloud=cloud, gpus=gpus, rdma=rdma), master_addr="10.0.0.2", nodes=nodes)
    assert made == {**ENS3, **more}


def test_nccl_variables_are_empty_for_an_unknown_interface() -> None:
    assert nccl.variables(facts(interfaces={}), master_addr="10.0.0.2", nodes=2) == {}


@pytest.mark.parametrize(
    ("cloud", "gpu", "rdma", "joins"),
    [
        pytest.param("oci", "NVIDIA H100 80GB HBM3", (roce(0, "ens3"), roce(1, "rdma0", addressed=False)), True,
                     id="no-address-yet"),
        pytest.param("oci", "NVIDIA A100-SXM4-40GB", (roce(0, "ens3"), roce(1, "rdma0")), True, id="an-address"),
        pytest.param("oci", "NVIDIA H100 80GB HBM3", (roce(0, "ens3"),), False, id="the-vcns-alone"),
        pytest.param("oci", "NVIDIA A10", (roce(0, "ens3"), roce(1, addressed=False)), False,
                     id="a-second-port-of-a-kind-that-has-no-cluster-network"),
        pytest.param("oci", None, (roce(0, "ens3"), roce(1, addressed=False)), False, id="no-gpu"),
        pytest.param(None, "NVIDIA H100 80GB HBM3", (roce(0, addressed=False),), False, id="elsewhere"),
    ],
)  # fmt: skip
def test_joins_cluster_network_only_with_oci_cluster_rdma(
    cloud: str | None, gpu: str | None, rdma: tuple[RdmaDevice, ...], joins: bool
) -> None:
    gpus = ({"index": 0, "name": gpu},) if gpu else ()
    assert nccl.joins_cluster_network(facts(cloud=cloud, gpus=gpus, rdma=rdma), "ens3") is joins


LOGS = {
    "two channels over TCP, and shared memory": (
        """\
node-0:71:71 [0] NCCL INFO Bootstrap: Using ens3:10.0.0.2<0>
node-0:71:90 [0] NCCL INFO NET/Socket : Using [0]ens3:10.0.0.2<0>
node-0:71:90 [0] NCCL INFO Using network Socket
node-0:71:95 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/Socket/0
node-0:71:95 [0] NCCL INFO Channel 01/0 : 3[1] -> 0[0] [receive] via NET/Socket/0
node-0:71:95 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
""",
        ["NET/Socket", "SHM"],
    ),
    "RDMA straight into the GPUs": (
        """\
node-0:71:90 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
node-0:71:90 [0] NCCL INFO Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/3/GDRDMA
node-0:71:90 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[1] via P2P/CUMEM
""",
        ["NET/IB/GDRDMA", "P2P"],
    ),
    "RDMA by way of another GPU's NIC": (
        "n:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 9[1] [send] via NET/IB/1(1)/GDRDMA/Shared\n",
        ["NET/IB/GDRDMA"],
    ),
    "EFA": (
        "n:1:2 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA\n",
        ["NET/AWS Libfabric/GDRDMA"],
    ),
    "no channel yet": ("n:1:2 [0] NCCL INFO Using network Socket\n", ["NET/Socket"]),
    "no channel yet, newer words": (
        "n:1:2 [0] NCCL INFO Initialized NET plugin IB\nn:1:2 [0] NCCL INFO Assigned NET plugin IB to comm\n",
        ["NET/IB"],
    ),
    "one GPU": ("n:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 - Init COMPLETE\n", []),
}


@pytest.mark.parametrize(("log", "expected"), LOGS.values(), ids=LOGS.keys())
def test_nccl_log_transports_are_read(log: str, expected: list[str]) -> None:
    assert nccl_log.transports(log.encode()) == expected


def test_nccl_log_read_of_a_missing_file_is_empty(tmp_path: Path) -> None:
    assert nccl_log.read(str(tmp_path / "nccl-0.log")) == []


def test_rdma_devices_are_read_from_sysfs(tmp_path: Path) -> None:
    for name, driver, interface in (("mlx5_0", "mlx5_core", "rdma0"), ("rdmap0s6", "efa", None)):
        device = tmp_path / "pci" / name
        device.mkdir(parents=True)
        (tmp_path / "drivers" / driver).mkdir(parents=True)
        (device / "driver").symlink_to(tmp_path / "drivers" / driver)
        if interface:
            (device / "net" / interface).mkdir(parents=True)
        (tmp_path / "infiniband" / name).mkdir(parents=True)
        (tmp_path / "infiniband" / name / "device").symlink_to(device)
    assert rdma_devices(tmp_path / "infiniband") == [
        {"name": "mlx5_0", "driver": "mlx5_core", "interfaces": ["rdma0"], "addressed": False},
        {"name": "rdmap0s6", "driver": "efa", "interfaces": [], "addressed": False},
    ]
    assert rdma_devices(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("name", "text", "cloud"),
    [
        ("chassis_asset_tag", "OracleCloud.com\n", "oci"),
        ("sys_vendor", "Amazon EC2\n", "aws"),
        ("sys_vendor", "Google\n", "gcp"),
        ("sys_vendor", "Supermicro\n", None),
        ("product_name", "Amazon EC2\n", None),
    ],
)
def test_cloud_is_read_from_dmi_files(tmp_path: Path, name: str, text: str, cloud: str | None) -> None:
    (tmp_path / name).write_text(text)
    assert cloud_of(tmp_path) == cloud
