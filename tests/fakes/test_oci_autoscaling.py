"""Scheduled autoscaling of instance pools through the SDK, with a calendar that tests advance."""

from datetime import UTC, datetime, timedelta

import pytest
from oci.autoscaling import models
from oci.pagination import list_call_get_all_results as every

from tests.fakes.client import start_fake
from tests.fakes.test_oci_pools import Pools, eventually

pytest_plugins = ["tests.fakes.oci.fixtures"]
HOUR_S = 3600


def once(seconds: float) -> str:
    """Return an expression for one time, at most a minute after `seconds` have passed."""
    return cron_of(datetime.now(UTC) + timedelta(seconds=seconds + 60))


def cron_of(time: datetime) -> str:
    return f"0 {time.minute} {time.hour} {time.day} {time.strftime('%b').upper()} ? {time.year}"


def policy(expression, *, size=0, **fields):
    schedule = models.CronExecutionSchedule(expression=expression, timezone="UTC")
    return models.CreateScheduledPolicyDetails(
        **{
            "display_name": "end",
            "capacity": models.Capacity(initial=size),
            "execution_schedule": schedule,
            "is_enabled": True,
        }
        | fields
    )


class Autoscaling(Pools):
    """Shorthands for schedules of pools."""

    @property
    def schedules(self):
        return self.world.autoscaling

    def plan(self, pool, *policies, **fields):
        details = {
            "compartment_id": self.world.compartment,
            "display_name": "s",
            "freeform_tags": {"gpuctl": "1"},
            "resource": models.InstancePoolResource(id=pool),
            "policies": list(policies),
        }
        return self.schedules.create_auto_scaling_configuration(
            models.CreateAutoScalingConfigurationDetails(**details | fields)
        ).data

    def with_members(self, count):
        """Return the OCID of a pool that launched `count` machines."""
        return self.create(count).id


@pytest.fixture
def pools(world):
    return Autoscaling(world)


class TestActing:
    def test_schedule_terminates_all_machines_at_its_time(self, pools, world):
        pool, machine = pools.with_member()
        pools.plan(pool, policy(once(HOUR_S)))
        world.control.advance(HOUR_S - 120)
        assert pools.get(pool).lifecycle_state == "RUNNING"
        world.control.advance(240)
        assert pools.get(pool).lifecycle_state == "SCALING"
        world.until(lambda: world.compute.get_instance(machine).data, "TERMINATED")
        assert pools.settled(pool).size == 0
        assert pools.live() == set()

    def test_schedule_acts_by_the_clock(self, pools, world):
        pool = pools.create().id
        time = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(hours=1)
        pools.plan(pool, policy(cron_of(time), size=1))
        world.control.advance((time - datetime.now(UTC)).total_seconds() - 0.7)
        assert pools.get(pool).size == 0
        eventually(lambda: pools.get(pool).size == 1)

    def test_schedule_waits_for_a_pool_that_is_scaling(self, pools, world):
        pool, machine = pools.with_member()
        world.settings(scaling_s=5)
        pools.plan(pool, policy(once(HOUR_S)))
        second = world.running(pools.subnet).id
        pools.attach(pool, second)
        world.control.advance(HOUR_S + 120)
        assert pools.get(pool).size == 2
        assert pools.live() == {machine, second}
        eventually(lambda: not pools.live())
        assert pools.settled(pool).size == 0

    def test_schedule_ends_a_replacement_too(self, pools, world):
        pool, machine = pools.with_member()
        pools.plan(pool, policy(once(HOUR_S)))
        world.compute.terminate_instance(machine)
        eventually(lambda: pools.live() - {machine})
        world.control.advance(HOUR_S + 120)
        eventually(lambda: not pools.live())

    @pytest.mark.parametrize("where", ["policy", "configuration"])
    def test_disabled_schedule_does_not_act(self, pools, world, where):
        pool = pools.with_members(1)
        made = pools.plan(
            pool,
            policy(once(HOUR_S), is_enabled=where != "policy"),
            is_enabled=where != "configuration",
        )
        world.control.advance(HOUR_S + 120)
        assert pools.get(pool).size == 1
        shown = pools.schedules.get_auto_scaling_configuration(made.id).data
        assert (shown.is_enabled, shown.policies[0].is_enabled) == (where == "policy", where != "policy")

    def test_schedule_of_a_deleted_configuration_does_not_act(self, pools, world, refused):
        pool = pools.with_members(1)
        made = pools.plan(pool, policy(once(HOUR_S)))
        pools.schedules.delete_auto_scaling_configuration(made.id)
        refused(404, "NotAuthorizedOrNotFound", pools.schedules.get_auto_scaling_configuration, made.id)
        world.control.advance(HOUR_S + 120)
        assert pools.get(pool).size == 1
        pools.plan(pool, policy(once(2 * HOUR_S)))

    def test_advanced_calendar_ends_with_a_reset(self, world):
        world.control.advance(HOUR_S)
        status, _ = world.control.handle("POST", "/_fake/advance", b'{"seconds": -1}')
        assert status == 400
        world.control.reset()
        assert world.control.advance(0) == {"offset_s": 0}


class TestConfigurations:
    def test_pool_has_one_configuration(self, pools, refused):
        pool = pools.create().id
        made = pools.plan(pool, policy(once(HOUR_S)))
        assert made.id in refused(409, "Conflict", pools.plan, pool, policy(once(HOUR_S)))

    def test_configuration_is_deleted_after_its_pool(self, pools, world):
        pool = pools.with_members(1)
        made = pools.plan(pool, policy(once(HOUR_S)))
        pools.api.terminate_instance_pool(pool)
        assert pools.schedules.get_auto_scaling_configuration(made.id).data.id == made.id
        world.until_gone(lambda: pools.schedules.get_auto_scaling_configuration(made.id))
        assert every(pools.schedules.list_auto_scaling_configurations, world.compartment).data == []

    def test_configuration_of_no_live_pool_is_refused(self, pools, refused):
        refused(404, "NotAuthorizedOrNotFound", pools.plan, "ocid1.instancepool.x", policy(once(HOUR_S)))
        pool = pools.create().id
        pools.api.terminate_instance_pool(pool)
        refused(409, "IncorrectState", pools.plan, pool, policy(once(HOUR_S)))

    @pytest.mark.parametrize(
        ("code", "words", "policies"),
        [
            ("InvalidParameter", "1 to 50 are allowed", []),
            ("InvalidParameter", "1 to 50 are allowed", [policy(once(HOUR_S))] * 51),
            ("InvalidParameter", "no valid cron", [policy("0 0 12 * * *")]),
            ("InvalidParameter", "never acts", [policy("0 0 12 1 1 ? 2020")]),
            ("InvalidParameter", "never acts", [policy("0 0 12 31 4 ? 2040")]),
            ("MissingParameter", "capacity.initial", [policy(once(HOUR_S), capacity=None)]),
            ("InvalidParameter", "capacity.initial", [policy(once(HOUR_S), size=-1)]),
            (
                "InvalidParameter",
                "no policies of type threshold",
                [models.CreateThresholdPolicyDetails(capacity=models.Capacity(initial=1), rules=[])],
            ),
            (
                "InvalidParameter",
                "no power actions",
                [policy(once(HOUR_S), resource_action=models.ResourcePowerAction(action="STOP"))],
            ),
        ],
    )
    def test_policies_are_refused(self, pools, refused, code, words, policies):
        assert words in refused(400, code, pools.plan, pools.create().id, *policies)

    def test_other_time_zone_is_refused(self, pools, world):
        body = {
            "compartmentId": world.compartment,
            "resource": {"type": "instancePool", "id": pools.create().id},
            "policies": [
                {
                    "policyType": "scheduled",
                    "capacity": {"initial": 0},
                    "executionSchedule": {"type": "cron", "timezone": "CET", "expression": once(HOUR_S)},
                }
            ],
        }
        answer = world.raw("POST", "/20181001/autoScalingConfigurations", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "InvalidParameter")


class TestPolicies:
    def test_policy_of_another_configuration_is_not_found(self, pools, refused):
        first, second = (pools.plan(pools.create().id, policy(once(HOUR_S))) for _ in range(2))
        update = pools.schedules.update_auto_scaling_policy
        details = models.UpdateScheduledPolicyDetails(display_name="other")
        refused(404, "NotAuthorizedOrNotFound", update, first.id, second.policies[0].id, details)

    def test_updated_schedule_acts_at_its_new_time_only(self, pools, world, refused):
        pool = pools.with_members(1)
        made = pools.plan(pool, policy(once(HOUR_S)))
        update = pools.schedules.update_auto_scaling_policy
        schedule = models.CronExecutionSchedule(expression=once(3 * HOUR_S), timezone="UTC")
        details = models.UpdateScheduledPolicyDetails(execution_schedule=schedule)
        assert update(made.id, made.policies[0].id, details).data.capacity.initial == 0
        (shown,) = pools.schedules.get_auto_scaling_configuration(made.id).data.policies
        assert shown.execution_schedule.expression == schedule.expression
        past = models.CronExecutionSchedule(expression="0 0 0 1 1 ? 2020", timezone="UTC")
        wrong = models.UpdateScheduledPolicyDetails(execution_schedule=past)
        refused(400, "InvalidParameter", update, made.id, made.policies[0].id, wrong)
        world.control.advance(2 * HOUR_S)
        assert pools.get(pool).size == 1
        world.control.advance(HOUR_S + 120)
        eventually(lambda: not pools.live())


def test_calendar_is_advanced_over_http(tmp_path):
    with start_fake("oci", tmp_path, options=["--region", "us-langley-1"]) as fake:
        fake.advance(HOUR_S)
        config = (tmp_path / "fake-oci" / "oci_config").read_text()
        assert "region=us-langley-1" in config
