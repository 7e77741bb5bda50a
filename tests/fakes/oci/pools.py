"""Instance configurations and instance pools: the operations of the SDK's ComputeManagementClient."""

from tests.fakes.oci import works
from tests.fakes.oci.account import FAULT_DOMAINS
from tests.fakes.oci.api import Handler, Reply, Request, View, page, shown
from tests.fakes.oci.common import getter, given, in_compartment, named
from tests.fakes.oci.errors import conflict, incorrect_state, invalid, missing, not_found
from tests.fakes.oci.launch import check_launch
from tests.fakes.oci.pool_members import (
    CONFIGURATION,
    KIND,
    Member,
    attach,
    detach,
    launch_body,
    members_of,
    must_be_idle,
    new_pool,
    pool_of,
    resize,
    subnet_of,
    terminate,
)
from tests.fakes.oci.store import Cloud, Resource
from tests.fakes.oci.vnics import check_vnic


def create_configuration(cloud: Cloud, request: Request) -> Reply:
    """CreateInstanceConfiguration: with given details."""
    body = request.body
    in_compartment(cloud, body)
    if body["source"] != "NONE":
        raise invalid(f"source: this service has no {body['source']}")
    details = body["instanceDetails"]
    if details["instanceType"] != "compute":
        raise invalid(f"instanceDetails.instanceType: this service has no {details['instanceType']}")
    configuration = cloud.add(
        CONFIGURATION,
        {
            **named(body, CONFIGURATION, len(cloud.all(CONFIGURATION)) + 1),
            # The SDK's model of the response has no value NONE.
            "source": None,
            "instanceDetails": details,
        },
    )
    return shown(configuration, made=True)


_CONFIGURATION_SUMMARY = ("id", "compartmentId", "displayName", "timeCreated", "definedTags", "freeformTags")


def list_configurations(cloud: Cloud, request: Request) -> Reply:
    """ListInstanceConfigurations: without their details."""
    rows = [
        (number, {name: view[name] for name in _CONFIGURATION_SUMMARY})
        for number, view in cloud.rows(CONFIGURATION)
    ]
    return page(request, rows, size=cloud.settings.page_size)


def delete_configuration(cloud: Cloud, request: Request) -> Reply:
    """DeleteInstanceConfiguration: refused while a pool has it.

    The message is the real one: https://github.com/oracle-quickstart/oci-hpc/issues/11.
    """
    configuration = cloud.get(CONFIGURATION, request.target)
    if any(cloud.where(KIND, instanceConfigurationId=configuration.id)):
        raise conflict(
            f"The Instance Configuration {configuration.id} is associated to one or more Instance Pools."
        )
    cloud.forget(configuration)
    return Reply(status=204)


def create_pool(cloud: Cloud, request: Request) -> Reply:
    """CreateInstancePool: its machines are launched once it exists."""
    body = request.body
    in_compartment(cloud, body)
    view = {
        **named(body, KIND, len(cloud.all(KIND)) + 1),
        "instanceConfigurationId": body["instanceConfigurationId"],
        "placementConfigurations": [given(placement) for placement in body["placementConfigurations"]],
        "size": body["size"],
        "poolType": "INSTANCE",
        "loadBalancers": [],
    }
    if body.get("loadBalancers") or body.get("lifecycleManagement"):
        raise invalid("loadBalancers, lifecycleManagement: this service has none")
    _check_pool(cloud, view)
    return shown(new_pool(cloud, view), made=True)


def _check_pool(cloud: Cloud, view: View) -> None:
    """Refuse a pool whose configuration can't launch any machine, even with capacity."""
    if view["size"] < 0:
        raise invalid(f"size must be at least 0: {view['size']}")
    configuration = cloud.get(CONFIGURATION, view["instanceConfigurationId"])
    if not view["placementConfigurations"]:
        raise missing("placementConfigurations needs at least 1 entry")
    for at, placement in enumerate(view["placementConfigurations"]):
        where = f"placementConfigurations[{at}]"
        if not cloud.account.has_domain(placement["availabilityDomain"]):
            raise invalid(f"{where}.availabilityDomain is no availability domain of this region")
        for fault in placement.get("faultDomains") or ():
            if fault not in FAULT_DOMAINS:
                raise invalid(f"{where}.faultDomains: {fault} is no fault domain")
        if subnet_of(placement) is None:
            raise missing(f"{where}.primarySubnetId is required")
        body = launch_body(configuration, view, placement)
        check_launch(cloud, body)
        check_vnic(cloud, body, placement["availabilityDomain"])


_POOL_SUMMARY = (
    "id",
    "compartmentId",
    "displayName",
    "instanceConfigurationId",
    "poolType",
    "lifecycleState",
    "size",
    "timeCreated",
    "definedTags",
    "freeformTags",
)


def list_pools(cloud: Cloud, request: Request) -> Reply:
    """ListInstancePools: without their placements."""
    rows = []
    for number, view in cloud.rows(KIND):
        domains = [placement["availabilityDomain"] for placement in view["placementConfigurations"]]
        summary = {name: view[name] for name in _POOL_SUMMARY}
        rows.append((number, summary | {"availabilityDomains": domains}))
    return page(request, rows, size=cloud.settings.page_size)


_UPDATABLE = {
    "displayName",
    "freeformTags",
    "definedTags",
    "instanceConfigurationId",
    "placementConfigurations",
    "size",
}


def update_pool(cloud: Cloud, request: Request) -> Reply:
    """UpdateInstancePool: existing machines do not change, new ones use the changed configuration."""
    pool = cloud.get(KIND, request.target)
    must_be_idle(pool)
    changes = given(request.body)
    if unknown := changes.keys() - _UPDATABLE:
        raise invalid(f"{', '.join(sorted(unknown))} can't be updated here")
    _check_pool(cloud, pool.view | changes)
    size = changes.pop("size", pool.view["size"])
    cloud.change(pool, **changes)
    resize(cloud, pool, size)
    return shown(pool, made=True)


def terminate_pool(cloud: Cloud, request: Request) -> Reply:
    """TerminateInstancePool: with all its machines."""
    pool = cloud.get(KIND, request.target)
    must_be_idle(pool)
    terminate(cloud, pool)
    return Reply(status=204)


def list_members(cloud: Cloud, request: Request) -> Reply:
    """ListInstancePoolInstances: without the states of their membership."""
    pool = cloud.get(KIND, request.target)
    hidden = {"instancePoolId", "lifecycleState"}
    rows = [
        (
            member.instance.number,
            {name: value for name, value in _shown_member(pool, member).items() if name not in hidden},
        )
        for member in members_of(pool).values()
    ]
    return page(request, rows, size=cloud.settings.page_size)


def _member(pool: Resource, instance_id: str) -> Member:
    member = members_of(pool).get(instance_id)
    if member is None:
        raise not_found()
    return member


_OF_INSTANCE = (
    "id",
    "availabilityDomain",
    "compartmentId",
    "displayName",
    "faultDomain",
    "region",
    "shape",
    "timeCreated",
)


def _shown_member(pool: Resource, member: Member) -> View:
    """Return a machine as a pool shows it: its `state` is not in capitals, unlike that of an instance."""
    view = member.instance.view
    return {name: view[name] for name in _OF_INSTANCE} | {
        "instancePoolId": pool.id,
        "instanceConfigurationId": pool.view["instanceConfigurationId"],
        "lifecycleState": member.state,
        "state": member.instance.state.capitalize(),
        "loadBalancerBackends": [],
    }


def attach_instance(cloud: Cloud, request: Request) -> Reply:
    """AttachInstancePoolInstance: a machine like the ones that the pool would launch."""
    pool = cloud.get(KIND, request.target)
    must_be_idle(pool)
    instance = cloud.get("instance", request.body["instanceId"])
    _check_attachable(cloud, pool, instance)
    member = attach(cloud, pool, instance)
    work = works.start(cloud, "AttachInstancePoolInstance", pool, "UPDATED")
    works.done(cloud, work)
    headers = {"etag": pool.etag, "opc-work-request-id": work.id}
    return Reply(status=201, body=_shown_member(pool, member), headers=headers)


def _check_attachable(cloud: Cloud, pool: Resource, instance: Resource) -> None:
    if instance.state == "TERMINATED":
        raise not_found()
    if instance.state != "RUNNING":
        raise incorrect_state(f"The instance {instance.id} is in state {instance.state}, not RUNNING.")
    other = pool_of(cloud, instance)
    if other is not None:
        raise conflict(f"The instance {instance.id} is a member of the instance pool {other.id}.")
    if instance.view["compartmentId"] != pool.view["compartmentId"]:
        raise invalid(f"The instance {instance.id} is not in the compartment of the instance pool {pool.id}.")
    configuration = cloud.get(CONFIGURATION, pool.view["instanceConfigurationId"])
    shape = configuration.view["instanceDetails"]["launchDetails"]["shape"]
    if instance.view["shape"] != shape:
        raise invalid(f"The instance {instance.id} has not the shape {shape} of the instance configuration.")
    if not any(_is_in(instance, placement) for placement in pool.view["placementConfigurations"]):
        raise invalid(f"The instance {instance.id} is in no placement of the instance pool {pool.id}.")
    refusal = cloud.settings.attach_refusal(*_traits(instance))
    if refusal is not None:
        raise invalid(f"The instance {instance.id} can't be attached: {refusal}")


def _is_in(instance: Resource, placement: View) -> bool:
    faults = placement.get("faultDomains")
    return (
        instance.view["availabilityDomain"] == placement["availabilityDomain"]
        and instance.own["vnic"].view["subnetId"] == subnet_of(placement)
        and (not faults or instance.view["faultDomain"] in faults)
    )


def _traits(instance: Resource) -> list[str]:
    """Return the traits of a machine by which a setting can refuse it."""
    traits = [instance.view["shape"]]
    if instance.view.get("preemptibleInstanceConfig"):
        traits.append("preemptible")
    if instance.own["cluster"]:
        traits.append("compute-cluster")
    return traits


def detach_instance(cloud: Cloud, request: Request) -> Reply:
    """DetachInstancePoolInstance: by default the pool shrinks, and the machine runs on."""
    pool = cloud.get(KIND, request.target)
    must_be_idle(pool)
    body = given(request.body)
    member = _member(pool, body["instanceId"])
    shrink, ends = body.get("isDecrementSize", True), body.get("isAutoTerminate", False)
    detach(cloud, pool, member, shrink=shrink, terminate=ends)
    work = works.start(cloud, "DetachInstancePoolInstance", pool, "UPDATED")
    works.done(cloud, work)
    return Reply(status=202, headers={"opc-work-request-id": work.id})


HANDLERS: dict[str, Handler] = {
    "CreateInstanceConfiguration": create_configuration,
    "GetInstanceConfiguration": getter(CONFIGURATION),
    "ListInstanceConfigurations": list_configurations,
    "DeleteInstanceConfiguration": delete_configuration,
    "CreateInstancePool": create_pool,
    "GetInstancePool": getter(KIND),
    "ListInstancePools": list_pools,
    "UpdateInstancePool": update_pool,
    "TerminateInstancePool": terminate_pool,
    "ListInstancePoolInstances": list_members,
    "AttachInstancePoolInstance": attach_instance,
    "DetachInstancePoolInstance": detach_instance,
}
