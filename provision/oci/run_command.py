"""A script on a machine by OCI's Run Command, with which a machine accepts the SSH key of another computer.

The plug-in of Oracle Cloud Agent runs scripts as the user `ocarun`. Machines of gpuctl allow that user to add a line
to the login's authorized keys, and nothing else.
https://docs.oracle.com/en-us/iaas/Content/Compute/Tasks/runningcommands.htm.
"""

import secrets
import shlex

from provision.errors import CloudError, Denied, Gone
from provision.oci.api import Api, Json
from provision.waiting import poll

TIMEOUT_S = 180.0
"""The agent fetches scripts, at times that Oracle does not document."""
SCRIPT_TIMEOUT_S = 30
NEEDS = (
    "the plug-in Compute Instance Run Command, and a dynamic group with the machine and the policy `Allow "
    "dynamic-group <group> to use instance-agent-command-execution-family in compartment id {compartment} where "
    "request.instance.id=target.instance.id`"
)
_SUDOERS = "/etc/sudoers.d/101-gpuctl-run-command"
_ENDED = ("SUCCEEDED", "FAILED", "TIMED_OUT", "CANCELED")


def boot_command(user: str) -> str:
    """Return shell text for the first boot, run as root: Run Command may add a key for `user`."""
    rule = f"ocarun ALL=({user}) NOPASSWD: {_append(user)}"
    return f"(umask 337; echo {shlex.quote(rule)} >{_SUDOERS})"


def script_to_add(user: str, public_key: str) -> str:
    """Return the script that adds a key, as `ocarun` may."""
    line = shlex.quote(public_key.strip())
    return f"set -o pipefail; echo {line} | sudo -n -u {user} {_append(user)}"


def admit_key(api: Api, machine_id: str, user: str, public_key: str) -> None:
    """Add the key to the authorized keys of `user`. Raises CloudError with the missing part."""
    details: Json = {
        "compartmentId": api.compartment,
        "displayName": "gpuctl adopt",
        "executionTimeOutInSeconds": SCRIPT_TIMEOUT_S,
        "target": {"instanceId": machine_id},
        "content": {
            "source": {"sourceType": "TEXT", "text": script_to_add(user, public_key)},
            "output": {"outputType": "TEXT"},
        },
    }
    created = api.call("agent.create_instance_agent_command", details, opc_retry_token=secrets.token_hex(16))
    needs = NEEDS.format(compartment=api.compartment)
    for _ in poll(api.clock, TIMEOUT_S):
        try:
            execution = api.call("agent.get_instance_agent_command_execution", created["id"], machine_id)
        except Gone:
            continue  # the machine has not taken the command yet
        if execution["lifecycleState"] in _ENDED:
            break
    else:
        raise CloudError(
            f"Run Command did not run within {TIMEOUT_S:.0f} s on {machine_id}, which needs {needs}.",
            operation="create_instance_agent_command",
            code="NotRun",
        )
    content = execution.get("content") or {}
    if execution["lifecycleState"] != "SUCCEEDED" or content.get("exitCode"):
        reason = str(content.get("text") or content.get("message") or execution["lifecycleState"]).strip()
        raise Denied(
            f"Run Command could not add the key on {machine_id}: {reason}. Its user ocarun needs the right to "
            f"`sudo -u {user} {_append(user)}`, which machines of gpuctl have.",
            operation="create_instance_agent_command",
            code=execution["lifecycleState"],
        )


def _append(user: str) -> str:
    return f"/usr/bin/tee -a /home/{user}/.ssh/authorized_keys"
