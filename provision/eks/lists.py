"""Whole lists of the services beside EC2, each of which has its own words for pages."""

from typing import Any

from provision.aws.api import MOST_PAGES, Api
from provision.errors import CloudError

_PAGES = {
    "eks": ("nextToken", "nextToken"),
    "iam": ("Marker", "Marker"),
    "logs": ("nextToken", "nextToken"),
    "autoscaling": ("NextToken", "NextToken"),
    "elbv2": ("Marker", "NextMarker"),
    "elb": ("Marker", "NextMarker"),
}
"""Service → what the next page's token is called in a request, and in an answer."""


def whole(api: Api, service: str, operation: str, key: str, **params: Any) -> list[Any]:  # noqa: ANN401 - as boto3
    """What is under `key` in each page."""
    asked, told = _PAGES[service]
    found: list[Any] = []
    for _ in range(MOST_PAGES):
        answer = api.call(operation, service=service, **params)
        found += answer.get(key) or []
        token = answer.get(told)
        if not token:
            return found
        params[asked] = token
    raise CloudError(f"{operation} in {api.region} has more than {MOST_PAGES} pages.", operation=operation)
