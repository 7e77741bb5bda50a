"""A machine's serial console on OCI: a history of it is captured, read, and removed again."""

import contextlib
import secrets

from provision.errors import CloudError
from provision.oci.api import Api, Json
from provision.rented.serial_console import MOST_BYTES, briefly, end_of
from provision.waiting import PollWaits

CAPTURE_TIMEOUT_S = 60.0


def read(api: Api, instance_id: str) -> str | None:
    """As `Cloud.console` says."""
    token = secrets.token_hex(16)
    details = {"instanceId": instance_id}
    history: Json = briefly(
        api.clock, lambda: api.hint("compute.capture_console_history", details, opc_retry_token=token)
    )
    try:
        _wait(api, history)
        return end_of(_content(api, history["id"]))
    finally:
        # One that stays costs nothing, and goes with its instance.
        with contextlib.suppress(CloudError):
            briefly(api.clock, lambda: api.hint("compute.delete_console_history", history["id"]))


def _wait(api: Api, history: Json) -> None:
    """Until the history has been captured. Raises CloudError where it fails, or takes too long."""
    deadline = api.clock.now() + CAPTURE_TIMEOUT_S
    waits = PollWaits()
    now = history
    while now["lifecycleState"] != "SUCCEEDED":
        state, late = now["lifecycleState"], api.clock.now() > deadline
        if state == "FAILED" or late:
            told = f"was still {state} after {CAPTURE_TIMEOUT_S:.0f} s" if late else "has failed"
            raise CloudError(
                f"OCI's capture of the console of {history['instanceId']} {told}.",
                operation="capture_console_history",
                code=state,
            )
        api.clock.sleep(waits.next())
        now = briefly(api.clock, lambda: api.hint("compute.get_console_history", history["id"]))


def _content(api: Api, history_id: str) -> bytes:
    """The last MOST_BYTES of the history, which is up to 1 MB long and is read from its beginning."""

    def part(offset: int) -> tuple[bytes, int]:
        response = briefly(
            api.clock,
            lambda: api.hint_response(
                "compute.get_console_history_content", history_id, offset=offset, length=MOST_BYTES
            ),
        )
        return response.data, int(response.headers.get("opc-bytes-remaining") or 0)

    first, left = part(0)
    return part(len(first) + left - MOST_BYTES)[0] if left else first
