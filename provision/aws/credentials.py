"""Who calls: found where the `aws` command line looks, by boto3 itself. Nothing is written, nothing is shown."""

from collections.abc import Callable
from typing import Any

import boto3
from botocore import exceptions as sdk

from inventories.deadline import within
from provision.errors import BadCredentials, UnknownProfile

CREDENTIALS_S = 120.0
"""The user's own program may ask for a code first."""


def configured() -> bool:
    """Whether anything here says that AWS is used, be it wrong. Asks no account."""
    try:
        session = boto3.Session()
        return bool(session.region_name or session.available_profiles or session.get_credentials())
    except sdk.BotoCoreError:
        return True  # something is there that can't be used


def new_session(profile: str | None, region: str | None) -> boto3.Session:
    """What calls are made with. Raises BadCredentials, and UnknownProfile for a profile that was named."""
    try:
        return boto3.Session(profile_name=profile, region_name=region)
    except sdk.ProfileNotFound as error:
        kind = UnknownProfile if profile else BadCredentials
        raise kind(
            f"AWS's configuration has no profile '{profile or error.kwargs.get('profile')}'. "
            "`aws configure list-profiles` shows those that there are; --profile chooses one."
        ) from error
    except sdk.BotoCoreError as error:
        raise BadCredentials(f"AWS's configuration can't be read: {str(error).rstrip('.')}.") from error


def within_limit(do: Callable[[], Any]) -> Any:
    """What `do` returns, which may run a program of the user's. Raises BadCredentials where that does not end."""
    try:
        return within(CREDENTIALS_S, do, what="they were not there")
    except TimeoutError as error:
        raise BadCredentials(
            f"AWS's credentials can't be had: {error}. If `~/.aws/config` names a credential_process, see by hand "
            "what it waits for."
        ) from error


def secrets(session: boto3.Session) -> tuple[str | None, ...]:
    """What tells credentials from others; empty where there are none."""
    try:
        credentials = within_limit(session.get_credentials)
        frozen = credentials.get_frozen_credentials() if credentials is not None else None
    except (sdk.BotoCoreError, sdk.ClientError):
        return ()  # whatever is wrong with them is told by the next call
    if frozen is None:
        return ()
    return (frozen.access_key, frozen.secret_key, frozen.token)
