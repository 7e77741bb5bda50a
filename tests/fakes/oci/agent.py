"""Run Command: scripts that Oracle Cloud Agent runs on the machines."""

from tests.fakes.oci.api import Handler, Reply, Request, shown
from tests.fakes.oci.common import in_compartment
from tests.fakes.oci.errors import not_found
from tests.fakes.oci.store import Cloud, must_be_live

KIND = "instanceagentcommand"


def create(cloud: Cloud, request: Request) -> Reply:
    """CreateInstanceAgentCommand: the machine takes it a little later, unless its agent does not ask for commands."""
    in_compartment(cloud, request.body)
    instance = cloud.get("instance", request.body["target"]["instanceId"])
    must_be_live(instance, "The instance")
    command = cloud.add(KIND, dict(request.body), own={"execution": None})
    script = request.body["content"]["source"]["text"]

    def run() -> None:
        if cloud.settings.runs_commands and cloud.hosts and instance.state == "RUNNING":
            code, text = cloud.hosts.run_as_agent(instance.id, script)
            command.own["execution"] = {
                "instanceAgentCommandId": command.id,
                "instanceId": instance.id,
                "deliveryState": "ACKED",
                "lifecycleState": "FAILED" if code else "SUCCEEDED",
                "timeCreated": command.view["timeCreated"],
                "timeUpdated": command.view["timeCreated"],
                "sequenceNumber": 1,
                "displayName": request.body.get("displayName"),
                "content": {"outputType": "TEXT", "exitCode": code, "text": text},
            }

    cloud.later(0.1, run)
    return shown(command, made=True)


def get_execution(cloud: Cloud, request: Request) -> Reply:
    """GetInstanceAgentCommandExecution."""
    command = cloud.get(KIND, request.target)
    execution = command.own["execution"]
    if execution is None or execution["instanceId"] != request.one("instanceId"):
        raise not_found()
    return Reply(body=execution)


HANDLERS: dict[str, Handler] = {
    "CreateInstanceAgentCommand": create,
    "GetInstanceAgentCommandExecution": get_execution,
}
