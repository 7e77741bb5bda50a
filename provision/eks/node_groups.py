"""Node groups and their launch templates: one small machine for operators and Ray's head, the machines with GPUs."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from inventories.text import plural
from inventories.threads import run_all, values
from provision.aws.api import Api
from provision.aws.errors import KEY_REFUSED, key_hint
from provision.aws.infrastructure.find_or_create import named
from provision.aws.requests import cluster_tags, filters, tagged
from provision.eks import auto_scaling_groups, requests, resources
from provision.eks.control_plane import ensure_named, issues, once_settled
from provision.eks.description import DESCRIPTION
from provision.errors import (
    Blocked,
    Capacity,
    CloudError,
    CreateFailed,
    Denied,
    Gone,
    Quota,
)
from provision.records import CloudCluster, EndGuard, Resource
from provision.rented import tags
from provision.rented.find_or_create import Ensure
from provision.rented.managed_kubernetes.zones import GROUP_WITHIN_S, remembered
from provision.rented.teardown import BLOCKED_TIMEOUT_S
from provision.waiting import Waiting

DEGRADED_FOR_S = 300.0
"""Longest time that a group may report a failed launch while its scaling group retries."""
NO_CAPACITY = (
    "InsufficientInstanceCapacity",
    "UnfulfillableCapacity",
    "SpotMaxPriceTooLow",
    "no Spot capacity available",
)
"""Parts of a scaling group's reason if AWS has no such machine in the zone now."""
NO_QUOTA = ("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "InstanceLimitExceeded")
CHANGING = ("CREATING", "UPDATING")
"""Statuses in which EKS takes no change for now."""
FAILED = ("CREATE_FAILED", "DELETE_FAILED")
"""Statuses in which EKS takes no change any more."""


@dataclass(frozen=True, kw_only=True)
class NodeGroups(Waiting):
    """The node groups of a cluster."""

    api: Api
    cluster: CloudCluster

    def ensure_template(self, group: str, ensure: Ensure, data: requests.Request) -> str:
        """Return the id of a group's launch template with this data.

        An earlier `up` may have left one with other data: EKS makes a new security group with each control plane.
        """
        name = requests.template_name(self.cluster, group, requests.digest(data))

        def find() -> str | None:
            of_cluster = tagged(tags.CLUSTER_ID, self.cluster.id)
            templates = self.api.pages("describe_launch_templates", "LaunchTemplates", Filters=of_cluster)
            template = named(templates, "LaunchTemplateName", name)
            return None if template is None else str(template["LaunchTemplateId"])

        def create(token: str) -> str:
            request = requests.launch_template(self.cluster, name, data, token)
            answer = self.api.call("create_launch_template", again=True, settle=True, **request)
            return str(answer["LaunchTemplate"]["LaunchTemplateId"])

        return ensure(f"launch-template {name}", find=find, create=create)

    def ensure(self, group: str, ensure: Ensure, request: Callable[[str], requests.Request]) -> None:
        """Find or create a node group. `request` returns its request for a token."""

        def send(token: str) -> None:
            body = request(token)
            once_settled(
                self.clock, lambda: self.api.call("create_nodegroup", service="eks", again=True, **body)
            )

        def exists() -> bool:
            described = self.describe(group)
            return described is not None and described["status"] != "DELETING"

        ensure_named(ensure, f"node-group {group}", group, exists, send)

    def describe(self, group: str) -> Mapping[str, Any] | None:
        """Return EKS's description of a node group. `None`: EKS has no such group."""
        name = self.cluster.kubernetes_name
        try:
            answer = self.api.call("describe_nodegroup", service="eks", clusterName=name, nodegroupName=group)
        except Gone:
            return None
        described: Mapping[str, Any] = answer["nodegroup"]
        return described

    def names(self) -> tuple[str, ...]:
        """Return the names of the cluster's node groups. Empty: no node groups, or no control plane."""
        name = self.cluster.kubernetes_name
        try:
            listed = self.api.pages("list_nodegroups", "nodegroups", service="eks", clusterName=name)
        except Gone:
            return ()
        return tuple(sorted(listed))

    def gpu_sizes(self) -> dict[str, int]:
        """Return the desired size of each group with GPUs, by its name."""
        groups = {name: self.describe(name) for name in self.names() if name != requests.CPU_GROUP}
        return {name: self._size(group) for name, group in groups.items() if group is not None}

    def scale(
        self,
        group: str,
        count: int,
        *,
        staying_addresses: Callable[[], Collection[str]],
        grows: bool = False,
        timeout_s: float = GROUP_WITHIN_S,
    ) -> None:
        """Wait until EKS takes a change, then set the group's desired size to `count`.

        Without `grows`, never raise it. Does not wait for new machines: `wait_running` does.
        Of too many machines, the newest end that are not at a staying address: a scaling group left to itself ends
        the oldest. Their end may take minutes more. A group that EKS could not make is not changed.
        """
        ending: set[str] = set()

        def scaled() -> tuple[bool | None, str]:
            described = self.describe(group)
            if described is None or described["status"] in FAILED:
                return True, ""
            status, settled = described["status"], described["scalingConfig"] == requests.scaling(count)
            if status in CHANGING:
                return (True if settled and status == "CREATING" else None), f"its status is {status}"
            if not count:
                if not settled:
                    self._resize(described, count)
                else:
                    desired = 0
                    with suppress(Denied):  # without the right to look, EKS's number counts
                        desired = auto_scaling_groups.scaling_group(self.api, described).desired
                    if desired:
                        auto_scaling_groups.set_size(self.api, described, count)
                return True, ""
            now = auto_scaling_groups.scaling_group(self.api, described)
            machines = (*now.starting, *now.in_service)
            if len(machines) <= count:
                # After the cluster's time no action would end new machines, and this may have waited until then.
                desired = count if grows and not is_over(self.cluster) else min(count, now.desired)
                if now.desired != desired or described["scalingConfig"] != requests.scaling(desired):
                    self._resize(described, desired)
                return True, ""
            if ending & set(machines):
                return None, "Auto Scaling does not show yet that they end"
            if now.desired > len(machines):  # or it would start others for the ending ones
                self._resize(described, len(machines))
            elif now.desired > count:  # else it ends the others itself
                excess = auto_scaling_groups.surplus(
                    machines, self._machines(group), count, staying_addresses()
                )
                for machine in excess[: now.desired - count]:
                    with remembered(ending, machine):
                        auto_scaling_groups.terminate(self.api, machine)
            return None, f"{plural(len(machines) - count, 'machine')} still to end"

        def scaled_or_blocked() -> tuple[bool | None, str]:
            try:
                return scaled()
            except Blocked as error:
                return None, str(error)

        self.wait_until(f"the change of the node group {group}", scaled_or_blocked, timeout_s)

    def scale_down(
        self, name: str, count: int, staying_addresses: Callable[[], Collection[str]], timeout_s: float
    ) -> None:
        """Scale a group down to `count` machines. A group that EKS could not make is removed."""
        self.scale(name, count, staying_addresses=staying_addresses, timeout_s=timeout_s)
        described = self.describe(name)
        if described is not None and described["status"] in FAILED and not count:
            self.remove(name)

    def wait_gone(self, name: str, count: int) -> None:
        """Wait until at most `count` machines of the group exist: EKS only reports that it began to end them."""

        def ended() -> tuple[bool | None, str]:
            existing = len(self._machines(name))
            return (True if existing <= count else None), f"{existing - count} of {existing} still to end"

        self.wait_until(f"the end of machines of the node group {name}", ended, GROUP_WITHIN_S)

    def wait_running(self, group: str, count: int, *, earlier: Collection[str] = ()) -> None:
        """Wait until `count` machines of the group run, and EKS has finished its changes.

        Schedules the machines' end as soon as EKS names their scaling groups, as the wait may be interrupted. Any
        other failed launch is shown in the line of progress, and the wait goes on, as the scaling group retries.
        `earlier`: failures before the last change. Raises Capacity and Quota if AWS has no such machine now, or the
        account's limit is reached, and CreateFailed if EKS gave up.
        """
        unscheduled_groups = {requests.CPU_GROUP, group} if ends_later(self.cluster) else set()
        degraded_since: float | None = None

        def running() -> tuple[bool | None, str]:
            nonlocal degraded_since
            described = self.describe(group)
            if described is None:
                return None, "EKS does not list it yet"
            for name in sorted(unscheduled_groups):
                candidate = described if name == group else self.describe(name)
                if candidate is not None and auto_scaling_groups.scaling_groups(candidate):
                    auto_scaling_groups.schedule_end(self.api, self.cluster, candidate)
                    unscheduled_groups.discard(name)
            status = described["status"]
            # A group that waits for machines is active, and degraded from a failed launch to the next good one.
            made = status in ("ACTIVE", "DEGRADED")
            now = (
                auto_scaling_groups.scaling_group(self.api, described)
                if made and count
                else auto_scaling_groups.NO_SCALING_GROUP
            )
            in_service = len(now.in_service)
            # After its time, a cluster has no machines.
            if made and (in_service >= count or is_over(self.cluster)):
                return True, ""
            # EKS's issues lag behind Auto Scaling by minutes, and may be of an earlier try.
            if status != "DEGRADED" or now.starting or issues(described) in earlier:
                degraded_since = None
            elif degraded_since is None:
                degraded_since = self.clock.now()
            lasts = degraded_since is not None and self.clock.now() - degraded_since >= DEGRADED_FOR_S
            if status in FAILED or lasts:
                raise failure(f"EKS could not make the node group {group}: {issues(described)}.")
            refused = [
                text
                for key, text in auto_scaling_groups.refusals(self.api, described).items()
                if key not in earlier
            ]
            final = (text for text in refused if any(word in text for word in (*NO_CAPACITY, *NO_QUOTA)))
            if text := next(final, None):
                raise failure(f"AWS could not start a machine of the node group {group}: {text}")
            state = f"{in_service} of {count} machines run" if made else f"its status is {status}"
            return None, "; ".join([state, *map(_with_hint, refused[:1])])

        self.wait_until(f"the node group {group}", running, GROUP_WITHIN_S)

    def failures(self, group: str) -> Collection[str]:
        """Return the failures until now, which are not about the next change: ids of launches, and EKS's issues."""
        described = self.describe(group)
        return (
            ()
            if described is None
            else {*auto_scaling_groups.refusals(self.api, described), issues(described)}
        )

    def remove(self, name: str) -> None:
        """Remove a node group that can't have its machines, so that they come up in another zone or not at all."""
        resource = Resource(
            kind=requests.NODE_GROUP,
            id=f"{self.cluster.kubernetes_name}/{name}",
            name=name,
            tags=cluster_tags(self.cluster),
            stage=resources.STAGES[requests.NODE_GROUP],
        )
        self.once_unblocked(
            f"the end of node group {name}",
            lambda: resources.delete(self.api, self.clock, resource),
            resources.ENDS_WITHIN_S + BLOCKED_TIMEOUT_S,
        )

    def end_guards(self) -> tuple[EndGuard, ...]:
        """Return the mechanisms that end the cluster's machines, as AWS describes them now.

        Empty: the cluster has no time limit, or no node groups. Read-only. A refusal of AWS leaves the state unknown.
        """
        planned = DESCRIPTION.end_guards(self.cluster)
        armed: bool | None = None
        try:
            groups = self.names()
            if not groups:
                return ()
            problem = "; ".join(filter(None, values(run_all(self._end_problem, groups))))
            armed = not problem
        except CloudError as error:
            problem = str(error)
        return tuple(EndGuard(**asdict(end), armed=armed, problem=problem) for end in planned)

    def schedule_ends(self) -> None:
        """Schedule the end of each node group without a scheduled action, also of groups without machines."""
        if not ends_later(self.cluster):
            return
        for name in self.names():
            group = self.describe(name)
            deleting = group is None or group["status"] == "DELETING"
            if (
                group is not None
                and not deleting
                and auto_scaling_groups.schedule_end(self.api, self.cluster, group)
            ):
                self.say(f"the end of the node group {name} is scheduled for {self.cluster.expires_at}")

    def _end_problem(self, name: str) -> str:
        """Return why machines of the group would not end at the cluster's time, as a clause. Empty: all would."""
        group = self.describe(name)
        if group is None or group["status"] == "DELETING":
            return ""
        if not auto_scaling_groups.scaling_groups(group):
            failed = group["status"] in FAILED
            return "" if failed else f"EKS does not name the scaling group of the node group {name} yet"
        if not auto_scaling_groups.unscheduled(self.api, self.cluster, group):
            return ""
        if not is_over(self.cluster):
            return f"no scheduled action ends the machines of the node group {name}"
        # AWS does not list an action that has acted: the desired size of the group shows its effect.
        size = auto_scaling_groups.scaling_group(self.api, group).desired
        return f"the time is over, and the desired size of the node group {name} is {size}" if size else ""

    def _size(self, group: Mapping[str, Any]) -> int:
        """Return the group's desired size, by Auto Scaling if possible: EKS's number may be out of date."""
        if group["status"] not in (*CHANGING, *FAILED):
            with suppress(Denied):
                return auto_scaling_groups.scaling_group(self.api, group).desired
        return int(group["scalingConfig"]["desiredSize"])

    def _resize(self, group: Mapping[str, Any], count: int) -> None:
        """Change the desired size, by EKS or by the scaling group.

        EKS refuses the number that it has, which may be out of date. EKS may refuse a change while a group is
        degraded, which lasts until the next good launch.
        """
        if group["scalingConfig"] == requests.scaling(count):
            auto_scaling_groups.set_size(self.api, group, count)
            return
        try:
            self.api.call(
                "update_nodegroup_config",
                service="eks",
                again=True,
                clusterName=self.cluster.kubernetes_name,
                nodegroupName=group["nodegroupName"],
                scalingConfig=requests.scaling(count),
            )
        except CloudError as error:
            refused = isinstance(error, Blocked) or error.code == "InvalidRequestException"
            if group["status"] != "DEGRADED" or not refused:
                raise
            auto_scaling_groups.set_size(self.api, group, count)

    def _machines(self, group: str) -> list[Mapping[str, Any]]:
        """Return the machines of the group that have not ended."""
        alive = filters(instance_state_name=("pending", "running", "shutting-down", "stopping", "stopped"))
        of_group = tagged(tags.CLUSTER_ID, self.cluster.id)
        of_group += tagged("Name", requests.node_name(self.cluster, group))
        reservations = self.api.pages("describe_instances", "Reservations", Filters=alive + of_group)
        return [machine for reservation in reservations for machine in reservation["Instances"]]


def failure(text: str) -> CloudError | CreateFailed:
    """Return the error for a sentence of EKS or of a scaling group, by the codes in it."""
    if any(word in text for word in NO_QUOTA):
        return Quota(text)
    return Capacity(text) if any(word in text for word in NO_CAPACITY) else CreateFailed(_with_hint(text))


def _with_hint(text: str) -> str:
    """Add the rights that a key has to grant, if AWS ended a machine because of its disk's key."""
    return f"{text.rstrip('.')}. {key_hint(scaling=True)}" if KEY_REFUSED in text else text


def ends_later(cluster: CloudCluster) -> bool:
    """Return whether the cluster's machines end at a time in the future."""
    return cluster.expires_at is not None and not is_over(cluster)


def is_over(cluster: CloudCluster) -> bool:
    """Return whether the cluster's time is over."""
    return cluster.expires_at is not None and datetime.fromisoformat(cluster.expires_at) <= datetime.now(UTC)
