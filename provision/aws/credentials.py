"""The caller's credentials, looked up by boto3 as the `aws` command line does. Nothing is written or shown."""

import configparser
import json
import select
import shlex
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import boto3
import botocore.loaders
import botocore.session
from botocore import exceptions as sdk
from botocore.config import Config

from inventories.errors import InvalidInput
from inventories.text import did_you_mean
from inventories.threads import within
from provision.aws.errors import HINTS, translate
from provision.errors import BadCredentials, CloudError, UnknownProfile
from provision.ini_files import no_ini
from provision.reachable import no_answer
from provision.retries import CONNECT_TIMEOUT_S, FIRST_READ_S

T = TypeVar("T")

CREDENTIALS_S = 120.0
"""The user's own program may ask for a code first."""
CODE_S = 100.0
"""For a person to type the code, within CREDENTIALS_S."""
TERMINAL = Path("/dev/tty")

NO_CONNECTION = (sdk.ConnectionError, sdk.HTTPClientError)


class _NoTerminal(Exception):
    """AWS asks for an MFA code, and nobody can type it."""


def configured() -> bool:
    """Return whether this computer has a setting for AWS, even a wrong one. Asks no account."""
    try:
        session = boto3.Session()
        return bool(session.region_name or session.available_profiles or load(session))
    except (sdk.BotoCoreError, CloudError):
        return True  # a setting that can't be used


def new_session(profile: str | None, region: str | None) -> boto3.Session:
    """Return the session for calls. Raises BadCredentials, and UnknownProfile for a named profile."""
    try:
        core = botocore.session.Session(profile=profile)
        core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
        # For the clients with which the SDK itself gets credentials.
        first = Config(
            connect_timeout=CONNECT_TIMEOUT_S, read_timeout=FIRST_READ_S, retries={"total_max_attempts": 1}
        )
        core.set_default_client_config(first)
        core.get_component("credential_provider").get_provider("assume-role")._prompter = _ask_code  # noqa: SLF001
        return boto3.Session(botocore_session=core, region_name=region)
    except sdk.ProfileNotFound as error:
        kind = UnknownProfile if profile else BadCredentials
        if not (name := profile or error.kwargs.get("profile")):
            raise BadCredentials(
                "AWS_PROFILE or AWS_DEFAULT_PROFILE is set and empty, which names no profile. Type: "
                "unset AWS_PROFILE AWS_DEFAULT_PROFILE"
            ) from error
        near = did_you_mean(name, botocore.session.Session().available_profiles) or "."
        raise kind(
            f"AWS's configuration has no profile '{name}'{near} `aws configure list-profiles` lists them; --profile "
            "chooses one."
        ) from error
    except (sdk.BotoCoreError, ValueError) as error:
        raise BadCredentials(f"AWS's configuration can't be read: {_sentence(error)}.") from error


@cache
def _loader(data_path: str | None) -> botocore.loaders.Loader:
    """Return the reader of the SDK's own files, which are large: it keeps them for the sessions of all regions."""
    return botocore.loaders.create_loader(data_path)


def load(session: boto3.Session) -> Any:
    """Return the session's credentials, or `None`. Raises BadCredentials, NoAnswer, Denied."""
    return within_limit(session, session.get_credentials)


def secrets(session: boto3.Session) -> tuple[str | None, ...]:
    """Return the parts of the credentials, to compare them with others; empty without usable credentials."""
    try:
        credentials = load(session)
        frozen = credentials and within_limit(session, credentials.get_frozen_credentials)
    except CloudError:
        return ()  # the next call raises it
    return (frozen.access_key, frozen.secret_key, frozen.token) if frozen else ()


def within_limit(session: boto3.Session, do: Callable[[], T]) -> T:
    """Run `do` with a deadline, and return its credentials: they may come from a user's program or a server.

    Raises BadCredentials at the deadline and for unusable credentials, and the errors of a server.
    """
    try:
        return within(CREDENTIALS_S, do, what="they were not there")
    except CloudError:
        raise
    except sdk.ClientError as error:
        raise translate(error.response, service="sts", operation=error.operation_name) from error
    except NO_CONNECTION as error:
        raise no_answer("AWS", str(error)) from error
    except _NoTerminal as error:
        export = (
            f"aws configure export-credentials --profile {shlex.quote(session.profile_name)} --format env"
        )
        raise BadCredentials(
            f"AWS asks for an MFA code, and there is no terminal to type it on ({error}). On a terminal, run "
            f'`eval "$({export})"`, and start the command from there, without --profile.'
        ) from error
    except TimeoutError as error:
        raise BadCredentials(
            f"AWS's credentials can't be had: {error}. If `~/.aws/config` names a credential_process, see by hand "
            "what it waits for."
        ) from error
    except Exception as error:  # the SDK passes on any error of its providers
        raise BadCredentials(
            f"AWS's credentials can't be had: {_sentence(error)}. {HINTS[BadCredentials]}"
        ) from error


def config_refused(error: Exception) -> InvalidInput:
    """Return the error for a setting of AWS's SDK that it can't use."""
    text = _sentence(error)
    scheme = " Write it with `http://` or `https://`." if "endpoint" in text and "://" not in text else ""
    return InvalidInput(
        f"AWS's configuration can't be used: {text}.{scheme} Look at the variables AWS_* and at `~/.aws/config`."
    )


def _ask_code(prompt: str) -> str:
    """Ask on the terminal, also where the standard input is a pipe. Lines typed after CODE_S are left to others."""
    try:
        with TERMINAL.open() as terminal:
            sys.stderr.write(prompt)
            sys.stderr.flush()
            if not select.select([terminal], [], [], CODE_S)[0]:
                raise BadCredentials(
                    f"AWS asks for an MFA code, and none was typed within {CODE_S:.0f} s. Run the command again."
                )
            return terminal.readline().strip()
    except OSError as error:
        raise _NoTerminal(prompt.strip().rstrip(":")) from error


def _sentence(error: Exception) -> str:
    """Return the fault of the configuration, without a full stop."""
    if isinstance(error, OSError) and error.filename:
        return f"'{error.filename}': {error.strerror}"
    if isinstance(error, sdk.ConfigParseError) and isinstance(error.__context__, configparser.Error):
        return f"'{error.kwargs.get('path')}': {no_ini(error.__context__)}"
    # The program's output is not shown: it may be a secret.
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | AttributeError | TypeError | KeyError):
        return (
            "their source gave no JSON of credentials (run a `credential_process` of `~/.aws/config` by hand)"
        )
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
