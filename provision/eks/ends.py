"""The end of a cluster's time on EKS: actions of its node groups' scaling groups, read back and made again."""

from dataclasses import asdict
from functools import partial

from provision.aws.api import Api
from provision.eks.description import DESCRIPTION
from provision.eks.infrastructure import node_groups
from provision.eks.infrastructure.auto_scaling import (
    scaling_group,
    scaling_groups,
    schedule_end,
    unscheduled,
)
from provision.errors import CloudError
from provision.parallel import run_all, values
from provision.records import CloudCluster, EndGuard
from provision.waiting import Say


def guards(api: Api, cluster: CloudCluster) -> tuple[EndGuard, ...]:
    """Return the mechanisms that end the cluster's machines, as AWS describes them now.

    Empty: the cluster has no time limit, or no node groups. Read-only. A refusal of AWS leaves the state unknown.
    """
    planned = DESCRIPTION.end_guards(cluster)
    armed: bool | None = None
    try:
        names = node_groups.group_names(api, cluster)
        if not names:
            return ()
        problem = "; ".join(filter(None, values(run_all(partial(_problem, api, cluster), names))))
        armed = not problem
    except CloudError as error:
        problem = str(error)
    return tuple(EndGuard(**asdict(end), armed=armed, problem=problem) for end in planned)


def arm(api: Api, cluster: CloudCluster, say: Say) -> None:
    """Schedule the end of each node group for which no action is scheduled, also of groups without machines."""
    if not node_groups.ends_by_itself(cluster):
        return
    for name in node_groups.group_names(api, cluster):
        group = node_groups.describe(api, cluster, name)
        if group is not None and group["status"] != "DELETING" and schedule_end(api, cluster, group):
            say(f"the end of the node group {name} is scheduled for {cluster.expires_at}")


def _problem(api: Api, cluster: CloudCluster, name: str) -> str:
    """Return why machines of the node group would not end at the cluster's time, as a clause. Empty: all would."""
    group = node_groups.describe(api, cluster, name)
    if group is None or group["status"] == "DELETING":
        return ""
    if not scaling_groups(group):
        failed = group["status"] in node_groups.FAILED
        return "" if failed else f"EKS does not name the scaling group of the node group {name} yet"
    if not unscheduled(api, cluster, group):
        return ""
    if not node_groups.is_over(cluster):
        return f"no scheduled action ends the machines of the node group {name}"
    # AWS does not list an action that has acted: the desired size of the group shows its effect.
    size = scaling_group(api, group).wanted
    return f"the time is over, and the desired size of the node group {name} is {size}" if size else ""
