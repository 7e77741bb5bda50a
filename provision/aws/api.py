"""Calls to AWS: clients, whole lists, retries. The only module that knows botocore's errors."""

import os
import threading
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import boto3
import botocore
from botocore import exceptions as sdk
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.parsers import ResponseParserError

from inventories.errors import InvalidInput
from inventories.text import did_you_mean
from provision.aws.credentials import (
    NO_CONNECTION,
    config_refused,
    load,
    new_session,
    secrets,
    within_limit,
)
from provision.aws.errors import EXPIRED, HINTS, translate
from provision.errors import BadCredentials, CloudError, Gone, NoAnswer, Unclear
from provision.reachable import no_answer, resolve
from provision.retries import CONNECT_TIMEOUT_S, FIRST_READ_S, Retry
from provision.waiting import Clock, retry_while

Answer = dict[str, Any]
Item = Mapping[str, Any]
"""An entry of a list, as AWS describes it."""

READ_TIMEOUT_S = 60
READS = ("describe_", "get_", "list_")
"""Beginnings of the names of calls that change nothing."""
CONNECTIONS = 64
MAX_PAGES = 1000
_LISTS = (
    "instances images instance_type_offerings internet_gateways nat_gateways network_interfaces "
    "security_groups spot_instance_requests subnets volumes vpc_endpoints vpcs"
)
PAGE_SIZES = {f"describe_{name}": 1000 for name in _LISTS.split()} | {"describe_route_tables": 100}
"""The largest sizes that AWS takes. Without a size, AWS refuses some long lists."""
FILTER_IN_SINGULAR = frozenset({"describe_nat_gateways"})
"""Calls whose parameter is named `Filter`, unlike all others."""
_PAGE_TOKENS = {
    "eks": ("nextToken", "nextToken"),
    "iam": ("Marker", "Marker"),
    "logs": ("nextToken", "nextToken"),
    "elbv2": ("Marker", "NextMarker"),
    "elb": ("Marker", "NextMarker"),
}
"""Service → name of the next page's token in a request, and in an answer."""
SETTLE_S = 30.0
"""Time that a new resource may be unknown to the next call."""

_NEVER_SENT = (
    sdk.EndpointConnectionError, sdk.ConnectTimeoutError, sdk.ProxyConnectionError, sdk.SSLError
)  # fmt: skip
_NOT_REACHED = (*_NEVER_SENT, sdk.ReadTimeoutError)
_LOST = (*NO_CONNECTION, sdk.IncompleteReadError, ResponseParserError)
_OUR_MISTAKES = (
    sdk.DataNotFoundError,
    sdk.MissingParametersError,
    sdk.OperationNotPageableError,
    sdk.PaginationError,
    sdk.ParamValidationError,
    sdk.ValidationError,
    sdk.WaiterError,
)
"""Errors of a request that gpuctl made wrongly. Other errors of the SDK come from its configuration."""


class Api:
    """One account in one region. Thread-safe."""

    def __init__(self, *, region: str | None, profile: str | None, clock: Clock) -> None:
        self._profile = profile
        self._clock = clock
        self._retry = Retry(clock=clock)
        self._lock = threading.Lock()
        self._session = new_session(profile, region)
        self._clients: dict[str, Any] = {}
        self._loaded: boto3.Session | None = None
        self._credentials: Any = None
        """Credentials of the session that was `_loaded`."""
        self.region = region or self._session.region_name or ""
        if not self.region:
            if not secrets(self._session):
                raise BadCredentials(
                    f"There are no credentials for AWS here, and no region. {HINTS[BadCredentials]} Give --region."
                )
            raise InvalidInput(
                "AWS needs a region. Give --region, or set AWS_DEFAULT_REGION or `region` in `~/.aws/config`."
            )
        if "AWS_ENDPOINT_URL" in os.environ:
            return
        known = [
            region
            for partition in self._session.get_available_partitions()
            for region in self._session.get_available_regions("ec2", partition_name=partition)
        ]
        if self.region not in known:
            raise InvalidInput(
                f"AWS has no region '{self.region}'{did_you_mean(self.region, known) or '.'} If it is a new "
                f"one, it needs a newer boto3 than {boto3.__version__}: `pip install --upgrade boto3`."
            )

    def call(
        self,
        operation: str,
        *,
        service: str = "ec2",
        again: bool | None = None,
        settle: bool = False,
        **params: Any,
    ) -> Answer:
        """Make a call by boto3's name for it, such as `describe_vpcs`, and repeat it if that is safe.

        Args:
            operation: The call.
            service: Its service.
            again: A second call does nothing, so a call of unclear outcome may be repeated. `None`: it only reads.
            settle: The call names a new resource, which AWS may not know yet.
            params: Its parameters.
        """
        repeatable = operation.startswith(READS) if again is None else again

        def once() -> Answer:
            return self._once(service, operation, params)

        def with_retries() -> Answer:
            return self._retry.call(once, again=repeatable, service=service)

        if not settle:
            return with_retries()
        return retry_while(self._clock, with_retries, lambda error: isinstance(error, Gone), SETTLE_S)

    def hint(self, operation: str, **params: Any) -> Answer:
        """Make a call once, without retries: for an answer that is not worth a wait."""
        return self._once("ec2", operation, params)

    def pages(self, operation: str, key: str, *, service: str = "ec2", **params: Any) -> list[Any]:
        """Return the entries under `key` of all pages of a list."""
        if "Filters" in params and operation in PAGE_SIZES:
            params["MaxResults"] = PAGE_SIZES[operation]
        if operation in FILTER_IN_SINGULAR and "Filters" in params:
            params["Filter"] = params.pop("Filters")
        sent, received = _PAGE_TOKENS.get(service, ("NextToken", "NextToken"))
        entries: list[Any] = []
        for _ in range(MAX_PAGES):
            answer = self.call(operation, service=service, **params)
            entries += answer.get(key) or []
            token = answer.get(received)
            if not token:
                return entries
            params[sent] = token
        raise CloudError(
            f"{operation} in {self.region} has more than {MAX_PAGES} pages. Look at the account: this can't be.",
            operation=operation,
        )

    def account(self) -> str:
        """Return the account's number. Needs valid credentials, and no permission."""
        return str(self.call("get_caller_identity", service="sts")["Account"])

    def ahead_s(self) -> float:
        """Return the seconds that this computer's clock is ahead of AWS's, give or take one."""
        answer = self.call("get_caller_identity", service="sts")
        theirs = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        return (datetime.now(theirs.tzinfo) - theirs).total_seconds()

    def _once(self, service: str, operation: str, params: Mapping[str, Any]) -> Answer:
        used = self._session
        try:
            return self._translated(service, operation, params)
        except BadCredentials as error:
            if error.code not in EXPIRED or not self._renewed_since(used):
                raise
        return self._translated(service, operation, params)

    def _translated(self, service: str, operation: str, params: Mapping[str, Any]) -> Answer:
        name = operation
        reads = operation.startswith(READS) or bool(params.get("DryRun"))
        try:
            self._load_credentials()
            client = self._client(service)
            name = client.meta.method_to_api_mapping[operation]
            answer: Answer = getattr(client, operation)(**params)
            return answer
        except sdk.ClientError as error:
            raise translate(
                error.response, service=service, operation=name, region=self.region, reads=reads
            ) from error
        except _LOST as error:
            call = f"{name} in {self.region}"
            reached = not isinstance(error, _NOT_REACHED)
            if reads or isinstance(error, _NEVER_SENT):
                raise no_answer("AWS", str(error), call, reached=reached) from error
            kind = Unclear if reached else NoAnswer
            raise kind(f"{call}: {str(error).rstrip('.')}. {HINTS[Unclear]}", operation=name) from error
        except _OUR_MISTAKES:
            raise
        except sdk.BotoCoreError as error:
            raise BadCredentials(
                f"{name} in {self.region}: {str(error).rstrip('.')}. {HINTS[BadCredentials]}", operation=name
            ) from error

    def _load_credentials(self) -> None:
        """Load the session's credentials, and newer ones before they expire: a program of the user's may make them.

        Raises BadCredentials if that program does not end.
        """
        with self._lock:
            session = self._session
            if self._loaded is not session:
                self._credentials = load(session)
                self._loaded = session
            credentials = self._credentials
        if isinstance(credentials, RefreshableCredentials) and credentials.refresh_needed():
            within_limit(session, credentials.get_frozen_credentials)

    def _client(self, service: str) -> Any:
        with self._lock:
            if service in self._clients:
                return self._clients[service]
            session, client = self._session, self._new_client(service)
        resolve(client.meta.endpoint_url, "AWS")
        with self._lock:
            return self._clients.setdefault(service, client) if session is self._session else client

    def _new_client(self, service: str) -> Any:
        """Return a new client. Called under the lock: a session is not thread-safe, its clients are."""
        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            # The first call of all goes to STS, which answers at once.
            read_timeout=FIRST_READ_S if service == "sts" else READ_TIMEOUT_S,
            retries={"total_max_attempts": 1},
            max_pool_connections=CONNECTIONS,
            user_agent_extra="gpuctl",
        )
        make: Any = self._session.client
        try:
            return make(service, region_name=self.region, config=config)
        except (sdk.BotoCoreError, ValueError, OSError) as error:
            raise config_refused(error) from error

    def _renewed_since(self, used: boto3.Session) -> bool:
        """Read the credentials again, as the user may have logged in again. Returns whether they are newer.

        `used`: the session of the call that failed. Of many calls at once, the first renews the credentials.
        """
        with self._lock:
            if self._session is not used:
                return True
            session = new_session(self._profile, self.region)
            if secrets(session) == secrets(self._session):
                return False
            self._session = session
            self._clients = {}
            return True


def versions() -> str:
    """Return the SDK's versions, for people."""
    return f"boto3 {boto3.__version__}, botocore {botocore.__version__}"
