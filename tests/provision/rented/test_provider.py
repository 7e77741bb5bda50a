"""Test a rented cluster in its account and region: existing resources are never lost or created twice."""

import json
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from stub_cloud import ACCOUNT, CONSISTENCY_S, REGION, ZONES, StubClouds, World
from support import an_inventory

from inventories import codec
from inventories.disk.store import ClusterFolder, Store
from inventories.errors import InvalidInput, InventoryError
from inventories.machine import Machine
from inventories.specs.gpu_driver import NO_DRIVER, DriverPlan
from inventories.specs.spec import Spec
from provision.errors import BadCredentials, LeftBehind, NoCapacity, OtherAccount, ProvisionError, RefusedPlan
from provision.findings import Finding
from provision.pricing import prices
from provision.pricing.prices import PriceList
from provision.provider import Plan
from provision.records import CloudCluster, Target
from provision.rented import tags
from provision.rented.interface import Cloud
from provision.rented.planning.caller_address import AddressUnknown
from provision.rented.provider import CloudProvider
from provision.rented.state import CloudState
from provision.rented.teardown import remove
from provision.waiting import Clock

SHAPE = "VM.GPU.A10.1"
SHAPE_OF = {"oci": "VM.GPU.A10.2", "aws": "g5.12xlarge"}
HERE = "203.0.113.7/32"
ELSEWHERE = "198.51.100.9/32"
TTL_S = 4 * 3600.0


class Killed(BaseException):
    """The process is dead."""


@dataclass(kw_only=True)
class Scene:
    """Run `up` and `down` like the command line, with a new provider for each command."""

    home: Path
    clouds: StubClouds = field(default_factory=StubClouds)

    @property
    def folder(self) -> ClusterFolder:
        return Store(self.home).cluster("default")

    @property
    def world(self) -> World:
        return self.clouds.world()

    @property
    def record(self) -> CloudCluster:
        record = CloudState(self.folder).load()
        assert record is not None
        return record

    @property
    def provider(self) -> CloudProvider:
        return CloudProvider("oci", self.folder, clock=self.clouds.clock, connect=self.clouds.connect)

    def plan(self, count: int | None = None, **asked: Any) -> Plan:
        spec = Spec(provider="oci", count=count, **{"shape": SHAPE, "ssh_cidr": HERE, **asked})
        current = self.folder.load() if self.folder.exists() else None
        return self.provider.plan(spec, current)

    def up(self, count: int | None = 2, **asked: Any) -> tuple[Machine, ...]:
        plan = self.plan(count, **asked)
        self.folder.make()
        self.folder.journal.append("up", provider="oci")
        machines = self.provider.create(plan, self.folder.journal)
        inventory = an_inventory(provider="oci", region=plan.region, machines=machines)
        self.folder.save(inventory)
        return machines

    def refuses(self, why: str, **asked: Any) -> None:
        """A plan is refused, and nothing is changed by it anywhere."""
        before = self.clouds.changes()
        with pytest.raises((RefusedPlan, OtherAccount), match=why):
            self.plan(**asked)
        assert self.clouds.changes() == before

    def time_is_over(self) -> None:
        """Let the machines' time pass and the machines end."""
        over = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="seconds")
        CloudState(self.folder).save(replace(self.record, expires_at=over))
        for machine in self.world.machines.values():
            machine.tags[tags.EXPIRES] = over
        self.world.end_all()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(home=tmp_path)


def ends(scene: Scene) -> set[str | None]:
    """Return the scheduled end times of the living machines."""
    return {machine.tags.get(tags.EXPIRES) for machine in scene.world.living()}


def test_unknown_address_is_in_the_plan_and_keeps_up_from_creating(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCTL_ADDRESS_URL", "http://127.0.0.1:1/")
    plan = scene.plan(2, ssh_cidr=None)
    assert plan.ssh_cidrs == ("<your address>/32",)
    assert plan.ssh_unknown.startswith("http://127.0.0.1:1/ does not tell")
    with pytest.raises(AddressUnknown, match="--ssh-cidr"):
        scene.up(2, ssh_cidr=None)
    assert scene.world.living() == []


def test_up_with_a_smaller_count_ends_the_highest_ranks(scene: Scene) -> None:
    machines = scene.up(3)
    plan = scene.plan(1)
    assert (plan.create, plan.end) == ((), tuple(sorted(machine.id for machine in machines[1:])))
    assert plan.hourly_usd == pytest.approx((scene.plan(3).hourly_usd or 0) / 3)
    assert [machine.id for machine in scene.up(1)] == [machines[0].id]
    assert [machine.id for machine in scene.world.living()] == [machines[0].id]


def test_up_and_destroy_are_idempotent(scene: Scene) -> None:
    machines = scene.up()
    assert [(m.name, m.rank, m.state) for m in machines] == [
        ("default-0", 0, "running"),
        ("default-1", 1, "running"),
    ]
    assert [m.id for m in scene.provider.find()] == [m.id for m in machines]
    sent = len(scene.world.sent)
    assert not scene.plan().changes
    assert [m.id for m in scene.up(None)] == [m.id for m in machines]
    assert len(scene.world.sent) == sent
    assert scene.provider.destroy() == ()
    assert scene.world.living() == []
    assert scene.world.there() == []
    assert scene.provider.destroy() == ()


# Another region, profile, compartment.


@pytest.mark.parametrize("subject", ["region", "profile", "compartment"])
@pytest.mark.parametrize("left", ["machines", "an unfinished launch", "parts"])
def test_up_refuses_to_move_a_cluster_that_has_resources(scene: Scene, subject: str, left: str) -> None:
    scene.clouds.accounts["work"] = "account-two"
    if left == "an unfinished launch":
        scene.world.on(
            "instances", BadCredentials("Expired."), match=lambda _: scene.world.machines != {}, times=1e9
        )
        with pytest.raises(LeftBehind):
            scene.up()
        scene.world.calm()
        for machine in scene.world.machines.values():
            machine.listed_at = 1e9
    else:
        scene.up()
    if left == "parts":
        scene.world.end_all()
        assert scene.world.there("nsg") != []
    existing = {"region": "region-b", "profile": "work", "compartment": "ocid1.compartment.b"}
    scene.refuses(f"--{subject}", **{subject: existing[subject]})
    elsewhere = [key for key in scene.clouds.worlds if key != (ACCOUNT, REGION, None)]
    assert [call for key in elsewhere for call in scene.clouds.worlds[key].changes()] == []


def test_up_refuses_to_move_a_cluster_that_only_has_a_network(scene: Scene) -> None:
    scene.world.capacity = dict.fromkeys(ZONES, 0)
    with pytest.raises(NoCapacity):
        scene.up()
    assert scene.world.there("nsg") != []
    scene.refuses("--region", region="region-b")
    scene.world.capacity = {}
    scene.up()
    assert len(scene.world.living()) == 2


def test_cluster_keeps_its_region_when_the_default_region_changes(scene: Scene) -> None:
    machines = scene.up()
    scene.clouds.region = "region-b"
    assert [m.id for m in scene.up()] == [m.id for m in machines]
    assert scene.provider.destroy() == ()
    assert scene.world.living() == []
    assert list(scene.clouds.worlds) == [(ACCOUNT, REGION, None)]


def test_up_in_another_region_works_only_after_down(scene: Scene) -> None:
    scene.up()
    cloud = scene.clouds.connect(scene.record.target)
    assert remove(cloud, None, clock=scene.clouds.clock, say=lambda _: None).leftovers == ()
    scene.refuses("--region", region="region-b")
    assert scene.provider.destroy() == ()
    scene.folder.remove()
    scene.up(region="region-b")
    assert scene.world.living() == []
    assert len(scene.clouds.world(region="region-b").living()) == 2


def test_up_accepts_another_profile_of_the_same_account(scene: Scene) -> None:
    scene.clouds.accounts["admin"] = ACCOUNT
    machines = scene.up()
    assert [m.id for m in scene.up(profile="admin")] == [m.id for m in machines]
    assert len(scene.world.machines) == 2


# Another account behind the same words.


def find(scene: Scene) -> object:
    return scene.provider.find()


def destroy(scene: Scene) -> object:
    return scene.provider.destroy()


def plan(scene: Scene) -> object:
    return scene.plan()


def states(scene: Scene) -> object:
    return scene.provider.states()


def refresh(scene: Scene) -> object:
    return scene.provider.refresh(scene.folder.load().machines[0])


QUESTIONS = pytest.mark.parametrize("ask", [plan, find, states, refresh, destroy], ids=lambda f: f.__name__)


@QUESTIONS
def test_cloud_provider_refuses_credentials_of_another_account(
    scene: Scene, ask: Callable[[Scene], object]
) -> None:
    scene.up()
    scene.clouds.accounts[None] = "account-two"
    before = scene.clouds.changes()
    with pytest.raises((ProvisionError, InventoryError)) as caught:
        ask(scene)
    assert ACCOUNT in str(caught.value)
    assert "account-two" in str(caught.value)
    assert scene.clouds.changes() == before
    assert scene.folder.exists()
    scene.clouds.accounts[None] = ACCOUNT
    assert len(scene.provider.find()) == 2


# Deleted files.


@pytest.mark.parametrize("ask", [plan, find, destroy], ids=lambda f: f.__name__)
@pytest.mark.parametrize("left", ["inventory", "launches", "both"])
def test_cloud_provider_names_reap_when_cloud_json_is_lost(
    scene: Scene, ask: Callable[[Scene], object], left: str
) -> None:
    scene.up()
    (scene.folder.path / "cloud.json").unlink()
    if left == "launches":
        scene.folder.inventory_path.unlink()
    if left == "inventory":
        for path in (scene.folder.path / "launches").iterdir():
            path.unlink()
    before = scene.clouds.changes()
    with pytest.raises((ProvisionError, InventoryError), match="gpuctl reap"):
        ask(scene)
    assert scene.clouds.changes() == before
    assert len(scene.world.living()) == 2


def test_find_and_destroy_without_files_ask_no_cloud(scene: Scene) -> None:
    assert scene.provider.find() == ()
    assert scene.provider.destroy() == ()
    assert scene.clouds.calls == []


# Time limits.


def test_up_with_ttl_after_expiry_sets_a_new_end(scene: Scene) -> None:
    scene.up(ttl_s=TTL_S)
    scene.time_is_over()
    scene.up(ttl_s=TTL_S)
    (end,) = ends(scene)
    assert end is not None
    left_s = (datetime.fromisoformat(end) - datetime.now(UTC)).total_seconds()
    assert TTL_S - 60 < left_s <= TTL_S + 1
    assert scene.record.expires_at == end


def test_up_without_ttl_after_expiry_clears_or_renews_the_end(scene: Scene) -> None:
    scene.up(ttl_s=TTL_S)
    scene.time_is_over()
    scene.up()
    (end,) = ends(scene)
    assert end is None or datetime.fromisoformat(end) > datetime.now(UTC)
    assert scene.record.expires_at == end


def test_up_keeps_the_end_time_of_living_machines(scene: Scene) -> None:
    scene.up(ttl_s=TTL_S)
    soon = (datetime.now(UTC) + timedelta(minutes=30)).isoformat(timespec="seconds")
    CloudState(scene.folder).save(replace(scene.record, expires_at=soon))
    for ttl_s in (TTL_S, None):
        scene.up(ttl_s=ttl_s)
        assert scene.record.expires_at == soon
    scene.up(3, ttl_s=TTL_S)
    assert scene.world.living()[-1].tags[tags.EXPIRES] == soon
    assert scene.record.expires_at == soon


# Machines that an inventory lists.


@pytest.mark.parametrize("seconds", [20.0, 50.0])
def test_destroy_ends_machines_that_are_listed_late(scene: Scene, seconds: float) -> None:
    scene.up()
    for machine in scene.world.machines.values():
        machine.listed_at = scene.clouds.clock.time + seconds
    assert scene.provider.destroy() == ()
    assert scene.world.living() == []
    assert scene.world.there() == []


def test_destroy_finishes_when_ended_machines_are_not_listed(scene: Scene) -> None:
    scene.up()
    scene.world.ended_listed_s = 0
    scene.world.end_all()
    began = scene.clouds.clock.time
    assert scene.provider.destroy() == ()
    assert scene.clouds.clock.time - began <= 5 * CONSISTENCY_S
    assert scene.world.there() == []


def test_refresh_does_not_report_an_unlisted_new_machine_as_gone(scene: Scene) -> None:
    (machine, _) = scene.up()
    scene.world.machines[machine.id].listed_at = 1e9
    assert scene.provider.refresh(machine).state != "gone"


# From where SSH is let in.


def let_in(scene: Scene) -> tuple[str, ...]:
    (nsg,) = scene.world.there("nsg")
    return scene.world.ssh_cidrs[nsg.id]


def test_up_with_another_ssh_cidr_replaces_the_ssh_rule(scene: Scene) -> None:
    scene.up()
    assert let_in(scene) == (HERE,)
    scene.up(ssh_cidr=ELSEWHERE)
    assert let_in(scene) == (ELSEWHERE,)
    prepared = len(scene.world.called("prepare"))
    scene.up(ssh_cidr=ELSEWHERE)
    assert len(scene.world.called("prepare")) == prepared, "nothing is to be changed"


@pytest.mark.parametrize("error", [Killed(), BadCredentials("Expired.")], ids=repr)
def test_up_retries_an_ssh_cidr_change_that_failed(scene: Scene, error: BaseException) -> None:
    scene.up()
    scene.world.on("prepare", error)
    with pytest.raises(type(error)):
        scene.up(ssh_cidr=ELSEWHERE)
    assert let_in(scene) == (HERE,)
    scene.up(ssh_cidr=ELSEWHERE)
    assert let_in(scene) == (ELSEWHERE,)


# Other values than the machines were made with.

CHANGES: dict[str, Any] = {
    "shape": "VM.GPU.A10.2",
    "image": "another-image",
    "disk_gb": 333,
    "spot": True,
    "ttl_s": 2 * TTL_S,
    "idle_s": 1800.0,
    "public_ip": False,
    "subnet_id": "ocid1.subnet.mine",
    "ssh_port": 2222,
}


@pytest.mark.parametrize("subject", CHANGES)
@pytest.mark.parametrize("count", [2, 3])
def test_up_refuses_changed_options_while_machines_live(scene: Scene, subject: str, count: int) -> None:
    scene.up(ttl_s=TTL_S)
    scene.refuses("gpuctl down", count=count, **{subject: CHANGES[subject]})
    assert scene.record.shape == SHAPE


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ttl_s": 2 * TTL_S}, "--ttl 90m, not 8h"),
        ({"idle_s": 1800.0}, "no --idle, not --idle 30m"),
        ({"spot": True}, "no --spot, not --spot"),
        ({"public_ip": False}, "no --no-public-ip, not --no-public-ip"),
        ({"image": "mine"}, "no --image, not --image mine"),
    ],
)
def test_up_names_changed_options_as_they_are_typed(
    scene: Scene, settings: dict[str, Any], message: str
) -> None:
    scene.up(ttl_s=5400.0)
    scene.refuses(message, **settings)


def test_up_refuses_changed_options_while_one_machine_lives(scene: Scene) -> None:
    scene.up()
    scene.world.end(scene.world.living()[0])
    scene.refuses("--shape", shape="VM.GPU.A10.2")


def test_up_refuses_changed_options_after_an_unfinished_launch(scene: Scene) -> None:
    scene.world.list_lag_s = 40

    def die(_: Any) -> None:
        scene.world.on("*", Killed(), times=1e9)
        raise Killed

    scene.world.on("send", die, performed=True)
    with pytest.raises(Killed):
        scene.up()
    scene.world.calm()
    scene.refuses("--shape", shape="VM.GPU.A10.2")


@pytest.mark.parametrize("subject", CHANGES)
def test_up_takes_changed_options_once_all_machines_ended(scene: Scene, subject: str) -> None:
    scene.up(ttl_s=TTL_S)
    scene.world.end_all()
    request = {"ttl_s": TTL_S} | {subject: CHANGES[subject]}
    assert len(scene.up(**request)) == 2
    assert getattr(scene.record, subject) == CHANGES[subject]
    assert len(scene.world.living()) == 2


def test_up_does_not_reuse_options_of_ended_machines(scene: Scene) -> None:
    scene.up(spot=True, public_ip=False, subnet_id="ocid1.subnet.mine")
    again = scene.up(spot=True, public_ip=False, subnet_id="ocid1.subnet.mine")
    assert len(again) == 2
    scene.world.end_all()
    scene.up()
    record, request = scene.record, scene.world.sent[-1]
    assert (record.spot, record.public_ip, record.subnet_id) == (False, True, None)
    assert (request["spot"], request["public_ip"]) == (False, True)
    assert request["subnet"] in {resource.id for resource in scene.world.there("subnet")}


@pytest.mark.parametrize(("name", "subject"), [("oci", "OCI SDK"), ("aws", "SDK")])
def test_check_reports_sdk_ok_and_credentials_missing(tmp_path: Path, name: str, subject: str) -> None:
    def connect(target: Target, clock: Clock) -> Cloud:
        raise BadCredentials("There are none.")

    provider = CloudProvider(name, Store(tmp_path).cluster("default"), connect=connect)
    sdk, credentials = provider.check(Spec(shape=SHAPE_OF[name]))
    assert (sdk.what, sdk.ok, bool(sdk.detail)) == (subject, True, True)
    assert credentials == Finding(what="credentials", ok=False, detail="There are none.")


@pytest.mark.parametrize("name", ["oci", "aws"])
def test_outline_works_without_region_and_address(tmp_path: Path, name: str) -> None:
    provider = CloudProvider(name, Store(tmp_path).cluster("default"))
    plan = provider.outline(Spec(shape=SHAPE_OF[name], count=2, public_ip=False))
    report = json.dumps([dict(request.body) for request in plan.requests])
    assert "<your address>/32" in report
    assert "CreateNatGateway" in {request.operation for request in plan.requests}
    assert plan.region is None
    assert "None" not in report
    assert {"oci": "<NVIDIA GPU-Optimized VMI, else", "aws": "<newest Deep Learning Base AMI>"}[
        name
    ] in report
    assert plan.image is not None
    assert plan.image in report
    assert "can't be asked" in plan.image_why


def test_plan_that_only_ends_a_machine_lists_the_request(scene: Scene) -> None:
    scene.up(1)
    (saved,) = scene.world.living()
    scene.world.machines["surplus"] = replace(saved, id="surplus")
    plan = scene.plan(1)
    assert (plan.create, len(plan.end), plan.changes) == ((), 1, True)
    (request,) = plan.requests
    assert (request.operation, request.body["instanceId"]) == ("TerminateInstance", plan.end[0])


PLAIN = "Canonical-Ubuntu-24.04"
CPU = "VM.Standard.E5.Flex"


@pytest.mark.parametrize(
    ("name", "settings", "driver"),
    [
        ("oci", {}, None),
        ("aws", {}, DriverPlan(source="image")),
        ("oci", {"driver": "580"}, DriverPlan(source="install", version="580")),
        ("oci", {"driver": "none"}, NO_DRIVER),
        ("oci", {"shape": CPU}, NO_DRIVER),
        ("oci", {"image": PLAIN}, DriverPlan(source="install")),
        ("oci", {"image": PLAIN, "driver": "580"}, DriverPlan(source="install", version="580")),
        ("oci", {"image": "Oracle-Linux-9.6-Gen2-GPU-2026.01"}, DriverPlan(source="image")),
        ("oci", {"image": "our-own"}, None),
        ("oci", {"image": "our-own", "driver": "none"}, NO_DRIVER),
        ("oci", {"image": "ocid1.image.oc1..ubuntu"}, None),
        ("aws", {"image": "ami-0123456789abcdef0"}, None),
        ("aws", {"image": "/aws/service/canonical/ubuntu/ami-id"}, None),
    ],
)
def test_outline_names_the_driver_or_leaves_it_unknown(
    tmp_path: Path, name: str, settings: dict[str, Any], driver: DriverPlan | None
) -> None:
    provider = CloudProvider(name, Store(tmp_path).cluster("default"))
    assert provider.outline(Spec(**{"shape": SHAPE_OF[name], **settings})).driver == driver


def test_outline_refuses_a_driver_for_an_image_that_has_one(tmp_path: Path) -> None:
    provider = CloudProvider("oci", Store(tmp_path).cluster("default"))
    with pytest.raises(InvalidInput, match="brings a driver of its own"):
        provider.outline(Spec(shape=SHAPE_OF["oci"], image="Oracle-Linux-9.6-Gen2-GPU-2026.01", driver="580"))


def priced(home: Path, usd_per_hour: dict[str, float]) -> None:
    """Save today's prices of OCI."""
    answer = PriceList(
        provider="oci", region=None, date="2026-11-22", source="here", usd_per_hour=usd_per_hour
    )
    (home / prices.FILE_NAME).write_bytes(codec.dump(prices.Prices(lists=(answer,))))


def test_outline_prices_oci_spot_at_half_the_refreshed_price(tmp_path: Path) -> None:
    priced(tmp_path, {"VM.GPU.A10.2": 10.0})
    provider = CloudProvider("oci", Store(tmp_path).cluster("default"))
    price = provider.outline(Spec(shape="VM.GPU.A10.2", count=2, spot=True)).price
    assert (price.machines_usd, price.varies) == (10.0, False)
    assert price.most_hourly_usd == price.hourly_usd


def test_plan_refuses_max_cost_for_spot_without_an_upper_bound(scene: Scene) -> None:
    provider = CloudProvider("aws", scene.folder, clock=scene.clouds.clock, connect=scene.clouds.connect)
    spec = Spec(
        shape="g5.12xlarge",
        count=1,
        spot=True,
        region="eu-west-1",
        ssh_cidr=HERE,
        ttl_s=TTL_S,
        max_cost_usd=99.0,
    )
    with pytest.raises(RefusedPlan, match="--refresh-prices --provider aws --region eu-west-1`"):
        provider.plan(spec, None)
    price = provider.plan(replace(spec, max_cost_usd=None), None).price
    assert (price.varies, price.most_hourly_usd) == (True, None)


class TellsAddress(BaseHTTPRequestHandler):
    """Answers callers with their address, as the real service does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(HERE.removesuffix("/32").encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def address_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", 0), TellsAddress) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("GPUCTL_ADDRESS_URL", f"http://127.0.0.1:{server.server_address[1]}/")
        yield
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("address_service")
def test_plan_notes_the_default_ssh_cidr_when_a_bastion_is_used(scene: Scene) -> None:
    """This computer's address, the usual default, is useless behind a bastion."""

    def told(**asked: Any) -> list[str]:
        return [note for note in scene.plan(1, **asked).notes if "SSH is let in" in note]

    (note,) = told(ssh_cidr=None, public_ip=False, bastion="me@192.0.2.9")
    assert HERE in note
    assert "--ssh-cidr" in note
    assert told(ssh_cidr=ELSEWHERE, public_ip=False, bastion="me@192.0.2.9") == []
    assert told(ssh_cidr=None) == []


# Two computers with one cluster.


@pytest.fixture
def second(scene: Scene, tmp_path: Path) -> Scene:
    """Return a computer of the same account, without files."""
    return Scene(home=tmp_path / "second", clouds=scene.clouds)


def kill_after_send(scene: Scene, count: int) -> None:
    """Run `up`, and end the computer's process as soon as the cloud has taken the first request."""
    dead: list[object] = []

    def die(argument: object) -> None:
        dead.append(argument)
        raise Killed

    scene.world.on("send", die, performed=True)
    scene.world.on("*", Killed(), match=lambda _: bool(dead), times=math.inf)
    with pytest.raises(Killed):
        scene.up(count)
    scene.world.calm()
    files = CloudState(scene.folder)
    for launch in files.launches():
        # Only a signal keeps a process from the attempt to undo it.
        files.save_launch(replace(launch, state="open") if launch.state == "undoing" else launch)


def test_adopt_with_lost_record_refuses_launches_of_another_cluster(scene: Scene, second: Scene) -> None:
    scene.up(2)
    kill_after_send(second, 2)
    (launch,) = CloudState(second.folder).launches()
    (second.folder.path / "cloud.json").unlink()
    with pytest.raises(RefusedPlan, match="Another cluster may have been called default"):
        second.provider.adopt(Target(provider="oci"), scene.record.id)
    CloudState(second.folder).save_launch(replace(launch, state="running", requests=()))
    with pytest.raises(RefusedPlan, match="Another cluster may have been called default"):
        second.provider.adopt(Target(provider="oci"), scene.record.id)


def test_adopt_rebuilds_lost_record_beside_launches(scene: Scene) -> None:
    scene.up(2)
    scene.world.end_all()
    scene.clouds.clock.sleep(5000)
    machines = scene.up(2)
    cluster_id = scene.record.id
    (scene.folder.path / "cloud.json").unlink()
    scene.provider.adopt(Target(provider="oci"), cluster_id)
    assert scene.record.id == cluster_id
    assert scene.provider.find() == tuple(replace(machine, gpus=None) for machine in machines)


@pytest.mark.parametrize("count", [2, 3])
def test_up_ends_no_machine_that_another_computer_made_after_its_plan(
    scene: Scene, second: Scene, count: int
) -> None:
    scene.up(2)
    second.provider.adopt(Target(provider="oci"), scene.record.id)
    plan = scene.plan(count)
    second.up(5)
    with pytest.raises(RefusedPlan, match="were not ended: default-"):
        scene.provider.create(plan, scene.folder.journal)
    assert sorted(machine.rank or 0 for machine in scene.world.living()) == [0, 1, 2, 3, 4]
    scene.up(count)  # a new plan names them
    assert len(scene.world.living()) == count


def test_adopt_again_learns_machines_that_were_not_listed_yet(scene: Scene, second: Scene) -> None:
    scene.clouds.one_request = True
    machines = scene.up(3)
    late = scene.world.machines[machines[2].id]
    late.listed_at = math.inf
    for listed_at in (math.inf, 0.0):
        late.listed_at = listed_at
        second.provider.adopt(Target(provider="oci"), scene.record.id)
    assert [m.host_key for m in second.provider.find()] == [m.host_key for m in machines]
    assert len(CloudState(second.folder).launches()) == 1


def test_up_keeps_machines_of_its_interrupted_launch_that_another_computer_uses(
    scene: Scene, second: Scene
) -> None:
    kill_after_send(scene, 3)
    scene.clouds.clock.sleep(CONSISTENCY_S)
    second.provider.adopt(Target(provider="oci"), scene.record.id)
    machines = second.up(2)
    files = CloudState(scene.folder)
    (launch,) = files.launches()
    files.save_launch(replace(launch, sent_at="2026-11-21T06:00:00+00:00"))
    plan = scene.plan(2)
    assert ([m.id for m in plan.keep], plan.end) == ([m.id for m in machines], ())
    assert [m.id for m in scene.up(2)] == [m.id for m in machines]
    assert [m.id for m in scene.world.living()] == [m.id for m in machines]


def test_plan_names_machines_of_a_new_launch_that_is_undone(scene: Scene) -> None:
    kill_after_send(scene, 3)
    scene.clouds.clock.sleep(CONSISTENCY_S / 2)
    (machine,) = scene.world.living()
    plan = scene.plan(2)
    assert ([m.rank for m in plan.create], plan.keep, plan.end) == ([0, 1], (), (machine.id,))
    assert machine.id not in {m.id for m in scene.up(2)}
    assert len(scene.world.living()) == 2


@pytest.mark.usefixtures("address_service")
def test_adopt_records_this_computers_address_once_it_is_let_in(scene: Scene, second: Scene) -> None:
    scene.up(2, ssh_cidr=None)
    (nsg,) = scene.world.there("nsg")
    scene.world.ssh_cidrs[nsg.id] = (ELSEWHERE,)
    scene.world.on("prepare", Killed())
    with pytest.raises(Killed):
        second.provider.adopt(Target(provider="oci"), scene.record.id)
    assert second.record.ssh_cidrs == let_in(scene) == (ELSEWHERE,)
    second.provider.adopt(Target(provider="oci"), scene.record.id)
    assert second.record.ssh_cidrs == let_in(scene) == (ELSEWHERE, HERE)
