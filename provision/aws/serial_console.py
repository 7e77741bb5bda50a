"""A machine's serial console."""

from typing import Any

from provision.aws.api import Api
from provision.errors import CloudError
from provision.rented.serial_console import briefly, end_of
from provision.waiting import Clock


def read(api: Api, clock: Clock, instance_id: str) -> str | None:
    """As `Cloud.console` says."""

    def ask(**how: bool) -> Any:
        return briefly(clock, lambda: api.hint("get_console_output", InstanceId=instance_id, **how))

    try:
        answer = ask(Latest=True)
    except CloudError as error:
        if type(error) is not CloudError:
            raise
        # Types that are not on Nitro refuse that, and have what AWS kept when the machine last changed its state.
        answer = ask()
    return end_of(answer.get("Output") or "")
