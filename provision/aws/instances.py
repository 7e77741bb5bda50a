"""Instances: list, launch, termination, serial console."""

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from inventories.threads import first_error, run_all
from provision.aws import quotas
from provision.aws.api import Api
from provision.aws.requests import ours, tagged, tags_in
from provision.errors import CloudError, Gone, Quota
from provision.records import Instance, InstanceState, Zone
from provision.rented import tags
from provision.rented.serial_console import end_of, with_short_retry
from provision.waiting import Clock

MOST_AT_ONCE = 200
"""Ids in one request."""

STATES: Mapping[str, InstanceState] = {
    "pending": "pending",
    "running": "running",
    "shutting-down": "ending",
    "terminated": "ended",
    "stopping": "stopping",
    "stopped": "stopped",
}


class Machines:
    """The machines of an account: a part of `Cloud`."""

    api: Api
    _clock: Clock

    def instances(self, cluster_id: str | None = None) -> tuple[Instance, ...]:
        """Return the machines by tag; AWS lists ended ones for about an hour."""
        return listed(self.api, cluster_id)

    def with_addresses(self, instances: Sequence[Instance]) -> tuple[Instance, ...]:
        """Return the instances unchanged: AWS lists them with their addresses."""
        return tuple(instances)

    def send(self, request: Mapping[str, Any]) -> tuple[str, ...]:
        """Send RunInstances. Returns the ids in the order of the ranks. The token keeps AWS from doing it twice."""
        try:
            answer = self.api.call("run_instances", again=True, settle=True, **request)
        except Quota as error:
            raise quotas.explained(self.api, error, request) from error
        items = sorted(answer["Instances"], key=lambda item: int(item.get("AmiLaunchIndex", 0)))
        return tuple(str(item["InstanceId"]) for item in items)

    def terminate(self, ids: Sequence[str]) -> None:
        """Terminate instances. A refusal does not keep the others; the first one is raised at the end."""
        batches = [ids[start : start + MOST_AT_ONCE] for start in range(0, len(ids), MOST_AT_ONCE)]
        error = first_error(run_all(lambda batch: _terminate(self.api, batch), batches))
        if error is not None:
            raise error

    def user_data(self, machine_id: str) -> str:
        """Return the machine's user-data: see `AdmitsKeys`."""
        answer = self.api.call("describe_instance_attribute", InstanceId=machine_id, Attribute="userData")
        return base64.b64decode(answer.get("UserData", {}).get("Value", "")).decode(errors="replace")

    def admit_key(self, machine_id: str, user: str, public_key: str) -> str:
        """Push the key by EC2 Instance Connect, for 60 seconds: see `AdmitsKeys`.

        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/connect-linux-inst-eic.html.
        """
        self.api.call(
            "send_ssh_public_key",
            service="ec2-instance-connect",
            again=True,
            InstanceId=machine_id,
            InstanceOSUser=user,
            SSHPublicKey=public_key,
        )
        return "EC2 Instance Connect in its image (the package ec2-instance-connect)"

    def console(self, instance_id: str) -> str | None:
        """Return the end of a machine's serial console: see `Cloud.console`."""

        def output(**options: bool) -> str | bytes:
            answer = with_short_retry(
                self._clock, lambda: self.api.hint("get_console_output", InstanceId=instance_id, **options)
            )
            text: str | bytes = answer.get("Output") or ""
            return text

        try:
            return end_of(output(Latest=True))
        except CloudError as error:
            if type(error) is not CloudError:
                raise
            # Types that are not on Nitro refuse that, and have AWS's copy of the last change of state.
            return end_of(output())


def listed(api: Api, cluster_id: str | None) -> tuple[Instance, ...]:
    """Return all instances of a cluster, or all of ours, by id."""
    conditions = [*ours(), *(tagged(tags.CLUSTER_ID, cluster_id) if cluster_id else [])]
    reservations = api.pages("describe_instances", "Reservations", Filters=conditions)
    items = [item for reservation in reservations for item in reservation["Instances"]]
    return tuple(sorted((read(item) for item in items), key=lambda instance: instance.id))


def read(item: Mapping[str, Any]) -> Instance:
    """Return an instance from AWS's description."""
    of = tags_in(item)
    launched: datetime = item["LaunchTime"]
    reason = item.get("StateReason", {})
    code, message = reason.get("Code", ""), reason.get("Message", "")
    # AWS repeats the code in most of the messages.
    message = message.removeprefix(f"{code}:").strip()
    return Instance(
        id=item["InstanceId"],
        tags=of,
        rank=tags.rank_at(of, int(item.get("AmiLaunchIndex", 0))),
        state=STATES.get(item["State"]["Name"], "pending"),
        shape=item["InstanceType"],
        zone=Zone(name=item.get("Placement", {}).get("AvailabilityZone", "")),
        launched_at=launched.astimezone(UTC).isoformat(timespec="seconds"),
        public_ip=item.get("PublicIpAddress"),
        private_ip=item.get("PrivateIpAddress"),
        reason=": ".join(word for word in (code, message) if word) or None,
        spot=item.get("InstanceLifecycle") == "spot",
        image_id=item.get("ImageId"),
    )


def _terminate(api: Api, ids: Sequence[str]) -> None:
    try:
        api.call("terminate_instances", again=True, InstanceIds=list(ids))
    except Gone as error:
        # AWS ends no instance of a batch with an unknown id.
        left = [i for i in ids if i not in error.named]
        if left and len(left) < len(ids):
            _terminate(api, left)
        elif left:
            _terminate_halves(api, ids)
    except CloudError as error:
        if type(error) is not CloudError or len(ids) == 1:
            raise
        _terminate_halves(api, ids)


def _terminate_halves(api: Api, ids: Sequence[str]) -> None:
    if len(ids) == 1:
        return
    middle = len(ids) // 2
    outcomes = run_all(lambda half: _terminate(api, half), [ids[:middle], ids[middle:]])
    if error := first_error(outcomes):
        raise error
