"""Check names and descriptions of security groups by EC2's rules, which moto does not check."""

import re
from typing import Any

from tests.fakes.aws_proxy.errors import ApiError, invalid_value

Params = dict[str, Any]

ALLOWED = "a-zA-Z0-9. _-:/()#,@[]+=&;{}!$*"
_TEXT = re.compile(r"[a-zA-Z0-9. _\-:/()#,@\[\]+=&;{}!$*]{0,255}")


def check_group(params: Params) -> None:
    """Raise ApiError for an invalid name or description of a security group."""
    name, text = params.get("GroupName", ""), params.get("Description", "")
    if name.lower().startswith("sg-"):
        raise ApiError(
            "InvalidParameterValue",
            f"Invalid group name '{name}'. Group names may not be in the format sg-*.",
        )
    for value, parameter in ((name, "GroupName"), (text, "GroupDescription")):
        if not value.isascii():
            raise invalid_value(value, parameter, "Character sets beyond ASCII are not supported.")
        if not _TEXT.fullmatch(value):
            raise invalid_value(
                value,
                parameter,
                f"Valid are strings less than 256 characters from the following set: {ALLOWED}",
            )


def check_rules(params: Params) -> None:
    """Raise ApiError for an invalid description of a rule."""
    for rule in params.get("IpPermissions", []):
        for sources in ("IpRanges", "Ipv6Ranges", "PrefixListIds", "UserIdGroupPairs"):
            for source in rule.get(sources, []):
                if not _TEXT.fullmatch(source.get("Description", "")):
                    raise ApiError(
                        "InvalidParameterValue",
                        "Invalid rule description. Valid descriptions are strings less than 256 characters from "
                        f"the following set: {ALLOWED}",
                    )
