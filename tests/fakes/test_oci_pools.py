"""Instance pools through the SDK: how machines join and leave them, and what pools launch and terminate."""

import time

import pytest
from oci.core import models
from oci.pagination import list_call_get_all_results as every

from tests.fakes.oci.account import DOMAINS

pytest_plugins = ["tests.fakes.oci.fixtures"]
AD = DOMAINS[0]
SHAPE = "VM.GPU.A10.1"
H100 = "BM.GPU.H100.8"


def end_slowly(world):
    """Slow down the end of pools, so that a busy machine sees each state."""
    world.settings(terminate_s=5 * world.control.settings.terminate_s)


class Pools:
    """Shorthands for pools in one subnet."""

    def __init__(self, world):
        self.world = world
        self.api = world.management
        self.subnet = world.subnet(world.vcn())

    def configuration(self, **fields):
        launch = {
            "compartment_id": self.world.compartment,
            "shape": SHAPE,
            "freeform_tags": {"gpuctl": "1"},
            "source_details": models.InstanceConfigurationInstanceSourceViaImageDetails(
                image_id=self.world.image()
            ),
        }
        launch_details = models.InstanceConfigurationLaunchInstanceDetails(**launch | fields)
        details = models.CreateInstanceConfigurationDetails(
            compartment_id=self.world.compartment,
            display_name="c",
            freeform_tags={"a": "b"},
            instance_details=models.ComputeInstanceDetails(launch_details=launch_details),
        )
        return self.api.create_instance_configuration(details).data

    def placement(self, **fields):
        place = {"availability_domain": AD, "primary_subnet_id": self.subnet.id}
        return models.CreateInstancePoolPlacementConfigurationDetails(**place | fields)

    def details(self, size=0, **fields):
        pool = {
            "compartment_id": self.world.compartment,
            "display_name": "p",
            "freeform_tags": {"gpuctl": "1"},
            "placement_configurations": [self.placement()],
            "size": size,
        }
        if "instance_configuration_id" not in fields:
            fields["instance_configuration_id"] = self.configuration().id
        return models.CreateInstancePoolDetails(**pool | fields)

    def create(self, size=0, **fields):
        """Create a pool, and wait until it runs."""
        return self.settled(self.api.create_instance_pool(self.details(size, **fields)).data.id)

    def get(self, pool):
        return self.api.get_instance_pool(pool).data

    def settled(self, pool, state="RUNNING"):
        return self.world.until(lambda: self.get(pool), state)

    def members(self, pool):
        return every(self.api.list_instance_pool_instances, self.world.compartment, pool).data

    def attach(self, pool, instance):
        return self.api.attach_instance_pool_instance(
            pool, models.AttachInstancePoolInstanceDetails(instance_id=instance)
        )

    def detach(self, pool, instance, **fields):
        return self.api.detach_instance_pool_instance(
            pool, models.DetachInstancePoolInstanceDetails(instance_id=instance, **fields)
        )

    def resize(self, pool, size):
        return self.api.update_instance_pool(pool, models.UpdateInstancePoolDetails(size=size)).data

    def with_member(self):
        """Create a pool with an attached machine."""
        pool, machine = self.create(), self.world.running(self.subnet)
        self.attach(pool.id, machine.id)
        self.settled(pool.id)
        return pool.id, machine.id

    def state_of(self, instance):
        return self.world.compute.get_instance(instance).data.lifecycle_state

    def live(self):
        """Return the OCIDs of the machines that have neither ended nor are ending."""
        entries = self.world.control.state()["instances"]
        return {entry["id"] for entry in entries if entry["state"] not in ("TERMINATED", "TERMINATING")}


@pytest.fixture
def pools(world):
    return Pools(world)


def eventually(condition):
    """Return the first true result of a condition."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.005)
    raise AssertionError("never true")


class TestConfigurations:
    def test_configuration_of_a_pool_stays_until_the_pool_is_gone(self, pools, world, refused):
        pool = pools.create()
        end_slowly(world)
        delete = pools.api.delete_instance_configuration
        message = refused(409, "Conflict", delete, pool.instance_configuration_id)
        assert "is associated to one or more Instance Pools" in message
        pools.api.terminate_instance_pool(pool.id)
        refused(409, "Conflict", delete, pool.instance_configuration_id)
        pools.settled(pool.id, "TERMINATED")
        delete(pool.instance_configuration_id)


class TestCreation:
    @pytest.mark.parametrize(
        ("status", "code", "fields"),
        [
            (404, "NotAuthorizedOrNotFound", {"instance_configuration_id": "ocid1.instanceconfiguration.x"}),
            (400, "InvalidParameter", {"size": -1}),
            (400, "MissingParameter", {"placement_configurations": []}),
        ],
    )
    def test_pool_is_refused(self, pools, refused, status, code, fields):
        refused(status, code, pools.api.create_instance_pool, pools.details(**fields))

    @pytest.mark.parametrize(
        ("status", "code", "place"),
        [
            (400, "InvalidParameter", {"availability_domain": "AD-9"}),
            (400, "InvalidParameter", {"fault_domains": ["FAULT-DOMAIN-9"]}),
            (400, "MissingParameter", {"primary_subnet_id": None}),
            (404, "NotAuthorizedOrNotFound", {"primary_subnet_id": "ocid1.subnet.x"}),
        ],
    )
    def test_placement_is_refused(self, pools, refused, status, code, place):
        details = pools.details(placement_configurations=[pools.placement(**place)])
        refused(status, code, pools.api.create_instance_pool, details)

    def test_configuration_that_no_machine_can_have_is_refused(self, pools, refused):
        configuration = pools.configuration(shape="VM.GPU.X.1")
        details = pools.details(instance_configuration_id=configuration.id)
        refused(404, "NotAuthorizedOrNotFound", pools.api.create_instance_pool, details)

    def test_pool_without_capacity_retries_until_its_size_is_reached(self, pools, world):
        world.settings(capacity={SHAPE: {AD: 1}})
        pool = pools.create(1)
        pools.resize(pool.id, 2)
        (work, *_) = eventually(lambda: self._failed(world, pool.id))
        errors = every(world.works.list_work_request_errors, work.id).data
        assert errors[0].message == "Out of host capacity."
        assert (pools.get(pool.id).lifecycle_state, len(pools.members(pool.id))) == ("SCALING", 1)
        world.settings(capacity={})
        pools.settled(pool.id)
        assert len(pools.members(pool.id)) == 2

    def test_pool_without_capacity_can_shrink_and_be_terminated(self, pools, world):
        world.settings(capacity={SHAPE: {AD: 0}})
        pool = pools.api.create_instance_pool(pools.details(2)).data
        before = eventually(lambda: self._failed(world, pool.id))
        pools.resize(pool.id, 0)
        pools.settled(pool.id)
        pools.resize(pool.id, 1)
        eventually(lambda: len(self._failed(world, pool.id)) > len(before))
        pools.api.terminate_instance_pool(pool.id)
        pools.settled(pool.id, "TERMINATED")

    @staticmethod
    def _failed(world, pool):
        works = every(world.works.list_work_requests, world.compartment, resource_id=pool).data
        failed = [work for work in works if work.status == "FAILED"]
        assert all(work.operation_type == "LaunchInstancesInPool" for work in failed)
        return failed


class TestAttaching:
    def test_attached_machine_is_attaching_then_active(self, pools, world, refused):
        pool, machine = pools.create(), world.running(pools.subnet)
        world.settings(scaling_s=3)
        response = pools.attach(pool.id, machine.id)
        assert (response.status, response.data.lifecycle_state, response.data.state) == (
            201,
            "ATTACHING",
            "Running",
        )
        assert (pools.get(pool.id).lifecycle_state, pools.get(pool.id).size) == ("SCALING", 1)
        other = models.AttachInstancePoolInstanceDetails(instance_id=machine.id)
        busy = (409, "IncorrectState")
        refused(*busy, pools.api.attach_instance_pool_instance, pool.id, other)
        refused(*busy, pools.detach, pool.id, machine.id)
        refused(*busy, pools.resize, pool.id, 2)
        refused(*busy, pools.api.terminate_instance_pool, pool.id)
        pools.settled(pool.id)
        assert [member.id for member in pools.members(pool.id)] == [machine.id]
        assert pools.live() == {machine.id}

    def test_machine_that_does_not_run_is_refused(self, pools, world, refused):
        pool, machine = pools.create(), world.running(pools.subnet)
        refused(404, "NotAuthorizedOrNotFound", pools.attach, pool.id, "ocid1.instance.x")
        world.compute.instance_action(machine.id, "STOP")
        assert "not RUNNING" in refused(409, "IncorrectState", pools.attach, pool.id, machine.id)

    def test_machine_that_differs_from_the_pool_is_refused(self, pools, world, refused):
        pool = pools.create(placement_configurations=[pools.placement(fault_domains=["FAULT-DOMAIN-1"])])
        wrong = (400, "InvalidParameter", pools.attach, pool.id)
        shape = world.running(pools.subnet, shape="VM.GPU.A10.2")
        assert "has not the shape" in refused(*wrong, shape.id)
        other_subnet = world.subnet(world.vcn())
        for fields in (
            {"subnet": other_subnet},
            {"availability_domain": DOMAINS[1]},
            {"fault_domain": "FAULT-DOMAIN-2"},
        ):
            machine = world.running(**{"subnet": pools.subnet} | fields)
            assert "in no placement" in refused(*wrong, machine.id)
        compartment = world.cloud.account.compartments["network"]
        machine = world.running(pools.subnet, compartment_id=compartment, fault_domain="FAULT-DOMAIN-1")
        assert "compartment" in refused(*wrong, machine.id)

    def test_member_of_a_pool_is_refused(self, pools, refused):
        pool, machine = pools.with_member()
        assert pool in refused(409, "Conflict", pools.attach, pool, machine)
        assert pool in refused(409, "Conflict", pools.attach, pools.create().id, machine)


class TestDetaching:
    def test_detached_machine_runs_and_the_pool_shrinks(self, pools, world, refused):
        pool, machine = pools.with_member()
        world.settings(scaling_s=2)
        assert pools.detach(pool, machine).status == 202
        assert pools.settled(pool).size == 0
        assert pools.members(pool) == []
        assert pools.state_of(machine) == "RUNNING"
        refused(404, "NotAuthorizedOrNotFound", pools.detach, pool, machine)
        pools.attach(pools.create().id, machine)

    def test_pool_replaces_a_detached_machine_unless_its_size_shrinks(self, pools):
        pool, machine = pools.with_member()
        pools.detach(pool, machine, is_decrement_size=False)
        assert pools.settled(pool).size == 1
        (member,) = pools.members(pool)
        assert member.id != machine
        assert pools.live() == {machine, member.id}


class TestReplacing:
    def test_pool_replaces_a_machine_whose_launch_fails(self, pools, world):
        world.settings(late_failure={AD: "Host failed to boot."})
        pool = pools.api.create_instance_pool(pools.details(1)).data
        eventually(lambda: len(world.control.state()["instances"]) > 1)
        world.settings(late_failure={})
        pools.settled(pool.id)
        assert [member.id for member in pools.members(pool.id)] == list(pools.live())

    def test_detached_machine_is_not_replaced_when_it_is_terminated(self, pools, world):
        pool, machine = pools.with_member()
        pools.detach(pool, machine)
        pools.settled(pool)
        world.compute.terminate_instance(machine)
        world.until(lambda: world.compute.get_instance(machine).data, "TERMINATED")
        time.sleep(0.05)
        assert pools.live() == set()


class TestResizing:
    def test_pool_scales_out_and_terminates_the_oldest_first(self, pools, world):
        placement = pools.placement(fault_domains=["FAULT-DOMAIN-1"])
        pool = pools.create(1, placement_configurations=[placement])
        (oldest,) = pools.members(pool.id)
        assert pools.resize(pool.id, 3).lifecycle_state == "SCALING"
        pools.settled(pool.id)
        assert len(pools.members(pool.id)) == 3
        pools.resize(pool.id, 2)
        pools.settled(pool.id)
        assert oldest.id not in pools.live()
        assert {member.id for member in pools.members(pool.id)} == pools.live()


class TestTerminating:
    def test_pool_ends_its_machines_with_their_boot_volumes(self, pools, world, refused):
        pool, attached = pools.with_member()
        pools.resize(pool, 2)
        pools.settled(pool)
        end_slowly(world)
        pools.api.terminate_instance_pool(pool)
        assert pools.get(pool).lifecycle_state == "TERMINATING"
        assert pools.state_of(attached) == "TERMINATING"
        refused(409, "IncorrectState", pools.api.terminate_instance_pool, pool)
        refused(409, "IncorrectState", pools.attach, pool, attached)
        pools.settled(pool, "TERMINATED")
        refused(404, "NotAuthorizedOrNotFound", pools.api.terminate_instance_pool, pool)
        assert {entry["state"] for entry in world.control.state()["instances"]} == {"TERMINATED"}
        world.until_gone(lambda: pools.get(pool))
        kinds = {entry["kind"] for entry in world.control.state()["resources"]}
        assert not kinds & {"bootvolume", "instancepool", "vnic"}
