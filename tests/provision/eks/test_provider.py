"""The whole way on a fake AWS: plan, create, find, destroy."""

import re
from collections import Counter
from pathlib import Path

import boto3
import pytest

from inventories.errors import InventoryError
from provision.eks.checks import NEEDED, NEEDED_WITHOUT_ADDRESSES
from provision.kubernetes import record
from tests.fakes.client import FakeCloud
from tests.provision.eks.building import User, operations

PROVISION = Path(__file__).parents[3] / "provision"
WAITS = {"Delay": 1, "MaxAttempts": 30}


def test_cluster_is_made_found_again_and_removed_without_leftovers(user: User, fake: FakeCloud) -> None:
    made = user.up(2)

    assert [machine.rank for machine in made] == [0, 1]
    assert user.provider.find() == made
    kinds = Counter(part.get("kind", "instance") for part in fake.owned())
    assert kinds["kubernetes-cluster"] == 1
    assert kinds["node-group"] == kinds["launch-template"] == kinds["role"] == 2
    assert kinds["add-on"] == 3
    assert kinds["instance"] == 3
    assert user.down() == ()
    assert fake.owned() == []
    assert not [part for part in fake.state()["resources"] if "eks" in str(part.get("name"))]
    assert set(operations(fake)) <= {action.partition(":")[2] for action in NEEDED}


@pytest.mark.slow
def test_second_up_changes_nothing(user: User, fake: FakeCloud) -> None:
    user.up(2)
    fake.forget_calls()

    plan = user.plan(2)
    user.up(2)

    assert not plan.changes
    assert plan.requests == ()
    assert operations(fake) == []


@pytest.mark.slow
def test_larger_count_makes_the_node_group_larger(user: User, fake: FakeCloud) -> None:
    user.up(1)
    fake.forget_calls()

    assert len(user.up(2)) == 2

    assert operations(fake) == ["UpdateNodegroupConfig"]


@pytest.mark.slow
def test_nodes_start_on_a_control_plane_made_anew(user: User, fake: FakeCloud) -> None:
    """EKS's security group is another one then, and the launch template that is left names the old one."""
    user.up(2)
    eks = boto3.client("eks", region_name="us-east-1")
    (name,) = eks.list_clusters()["clusters"]
    for group in eks.list_nodegroups(clusterName=name)["nodegroups"]:
        eks.delete_nodegroup(clusterName=name, nodegroupName=group)
        eks.get_waiter("nodegroup_deleted").wait(clusterName=name, nodegroupName=group, WaiterConfig=WAITS)
    eks.delete_cluster(name=name)
    eks.get_waiter("cluster_deleted").wait(name=name, WaiterConfig=WAITS)

    assert len(user.up(2)) == 2
    assert sum(live_instance["shape"] == "g5.12xlarge" for live_instance in fake.live_instances()) == 2
    assert user.down() == ()
    assert fake.owned() == []


@pytest.mark.slow
def test_rights_that_doctor_asks_for_allow_a_cluster_without_addresses(user: User, fake: FakeCloud) -> None:
    user.up(1, public_ip=False, ttl_s=7200.0)
    user.up(2, public_ip=False)
    assert user.down() == ()
    needed = {action.partition(":")[2] for action in (*NEEDED, *NEEDED_WITHOUT_ADDRESSES)}
    assert set(operations(fake)) <= needed


def test_doctor_asks_for_the_rights_of_all_operations_in_the_code() -> None:
    """Includes operations of rare cases, such as a repaired route or a role's inline policy."""
    names = {"ec2": "ec2", "eks": "eks", "iam": "iam", "autoscaling": "autoscaling", "logs": "logs"}
    names |= {"elb": "elasticloadbalancing", "elbv2": "elasticloadbalancing"}
    operations = {
        name: boto3.client(name, region_name="us-east-1").meta.method_to_api_mapping for name in names
    }
    folders = (PROVISION / "eks", PROVISION / "aws" / "infrastructure")
    sources = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    called = set(re.findall(r'"([a-z]+_[a-z_]+)"', sources))
    reading = ("describe_", "get_", "list_", "simulate_")
    changing = {name for name in called if not name.startswith(reading)} - {"import_key_pair"}
    lacking = {
        name
        for name in changing
        if (
            actions := {
                f"{names[operation]}:{known[name]}"
                for operation, known in operations.items()
                if name in known
            }
        )
        and not actions & {*NEEDED, *NEEDED_WITHOUT_ADDRESSES}
    }
    assert lacking == set()


def test_cluster_that_is_only_known_by_its_files_is_no_leftover(tmp_path: Path, user: User) -> None:
    assert User(tmp_path / "another").down() == ()
    assert user.down() == ()


@pytest.mark.slow
def test_another_address_is_let_in(user: User, fake: FakeCloud) -> None:
    """The API server would not answer this computer before, so the inventory supplies the machines."""
    made = user.up(2)
    fake.forget_calls()
    plan = user.plan(2, ssh_cidr="203.0.113.9/32")
    assert "will let in 203.0.113.9/32, and not 198.51.100.7/32" in plan.notes[0]
    assert plan.keep == made
    assert user.up(2, ssh_cidr="203.0.113.9/32") == made
    assert operations(fake) == ["UpdateClusterConfig"]
    assert not user.plan(2, ssh_cidr="203.0.113.9/32").notes


@pytest.mark.slow
def test_who_is_let_in_is_found_again_after_an_interrupt(user: User, fake: FakeCloud) -> None:
    """EKS refuses a change to the present value."""
    made = user.up(1)
    fake.settings(eks_cluster_s=400.0)

    def interrupt(line: str) -> None:
        if "to let in" in line:
            raise KeyboardInterrupt

    plan = user.plan(1, ssh_cidr="203.0.113.9/32")
    with pytest.raises(KeyboardInterrupt):
        user.provider.create(plan, user.folder.journal, interrupt)
    assert user.up(1, ssh_cidr="203.0.113.9/32") == made


@pytest.mark.slow
@pytest.mark.parametrize("text", [None, "{", '{"format": 999}'])
def test_down_needs_no_record_of_the_pods(user: User, fake: FakeCloud, text: str | None) -> None:
    user.up(1)
    path = user.folder.path / record.FILE
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(InventoryError):
        user.provider.find()
    assert user.down() == ()
    assert fake.owned() == []
