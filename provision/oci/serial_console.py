"""A machine's serial console on OCI: a history is captured, read, and removed again."""

import contextlib
import secrets

from provision.errors import CloudError
from provision.oci.api import Api, Json
from provision.rented.serial_console import MAX_BYTES, end_of, with_short_retry
from provision.waiting import poll

CAPTURE_TIMEOUT_S = 60.0


def read(api: Api, instance_id: str) -> str | None:
    """Return the end of a machine's serial console: see `Cloud.console`."""
    token = secrets.token_hex(16)
    details = {"instanceId": instance_id}
    history: Json = with_short_retry(
        api.clock, lambda: api.hint("compute.capture_console_history", details, opc_retry_token=token)
    )
    try:
        _wait(api, history)
        return end_of(_content(api, history["id"]))
    finally:
        # A history that stays costs nothing, and is deleted with its instance.
        with contextlib.suppress(CloudError):
            with_short_retry(api.clock, lambda: api.hint("compute.delete_console_history", history["id"]))


def _wait(api: Api, history: Json) -> None:
    """Wait until the history has been captured. Raises CloudError if it fails, or takes too long."""
    history_id, instance_id = history["id"], history["instanceId"]
    problem = ""
    for passed_s in poll(api.clock, CAPTURE_TIMEOUT_S):
        if passed_s:
            history = with_short_retry(api.clock, lambda: api.hint("compute.get_console_history", history_id))
        state = history["lifecycleState"]
        if state == "SUCCEEDED":
            return
        problem = "has failed" if state == "FAILED" else f"was still {state} after {CAPTURE_TIMEOUT_S:.0f} s"
        if state == "FAILED":
            break
    raise CloudError(
        f"OCI's capture of the console of {instance_id} {problem}.",
        operation="capture_console_history",
        code=state,
    )


def _content(api: Api, history_id: str) -> bytes:
    """Return the last MAX_BYTES of the history, which is up to 1 MB long and is read from its beginning."""

    def part(offset: int) -> tuple[bytes, int]:
        response = with_short_retry(
            api.clock,
            lambda: api.hint_response(
                "compute.get_console_history_content", history_id, offset=offset, length=MAX_BYTES
            ),
        )
        return response.data, int(response.headers.get("opc-bytes-remaining") or 0)

    first, left = part(0)
    return part(len(first) + left - MAX_BYTES)[0] if left else first
