"""Answer requests to other services: SSM's public parameters, quotas, prices; moto answers the rest."""

import json
from typing import Any

from tests.fakes.aws_proxy import images, instance_calls, shapes
from tests.fakes.aws_proxy.errors import ApiError
from tests.fakes.aws_proxy.moto_app import ACCOUNT
from tests.fakes.aws_proxy.world import World

Params = dict[str, Any]


def answer(world: World, service: str, operation: str, region: str, params: Params) -> Params | None:
    """Answer a call in JSON; `None`: moto has to answer it."""
    if (service, operation) in (("ssm", "GetParameter"), ("ssm", "GetParameters")):
        return _parameters(region, operation, params)
    if service == "servicequotas" and operation in ("GetServiceQuota", "GetAWSDefaultServiceQuota"):
        return _quota(world, region, operation, params)
    if service == "servicequotas" and operation == "ListServiceQuotas":
        return _quotas(world, region, params)
    if (service, operation) == ("ec2-instance-connect", "SendSSHPublicKey"):
        return instance_calls.push_key(world, region, params)
    if service == "pricing":
        return _prices(operation, params)
    return None


def _parameters(region: str, operation: str, params: Params) -> Params | None:
    known = images.parameters(region)
    if operation == "GetParameter":
        name = params.get("Name", "")
        return {"Parameter": _parameter(region, name, known[name])} if name in known else None
    names = params.get("Names", [])
    if not set(names) & set(known):
        return None
    return {
        "Parameters": [_parameter(region, name, known[name]) for name in names if name in known],
        "InvalidParameters": [name for name in names if name not in known],
    }


def _parameter(region: str, name: str, value: str) -> Params:
    return {
        "Name": name,
        "Type": "String",
        "Value": value,
        "Version": 1,
        "LastModifiedDate": 1782892800.0,
        "ARN": f"arn:aws:ssm:{region}::parameter{name}",
        "DataType": "aws:ec2:image",
    }


def _quota(world: World, region: str, operation: str, params: Params) -> Params | None:
    if params.get("ServiceCode") != "ec2":
        return None
    code = params.get("QuotaCode", "")
    if code not in shapes.QUOTAS:
        raise ApiError(
            "NoSuchResourceException", "The request failed because the specified quota does not exist."
        )
    local = operation == "GetServiceQuota"
    return {"Quota": _quota_shown(region, code, world.extra.quotas if local else {})}


def _quota_shown(region: str, code: str, values: dict[str, float]) -> Params:
    return {
        "ServiceCode": "ec2",
        "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
        "QuotaArn": f"arn:aws:servicequotas:{region}:{ACCOUNT}:ec2/{code}",
        "QuotaCode": code,
        "QuotaName": shapes.QUOTAS[code],
        "Value": values.get(code, shapes.DEFAULT_QUOTA),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


def _quotas(world: World, region: str, params: Params) -> Params | None:
    if params.get("ServiceCode") != "ec2":
        return None
    return {"Quotas": [_quota_shown(region, code, world.extra.quotas) for code in shapes.QUOTAS]}


HOURLY_USD = {
    "g4dn.xlarge": 0.526,
    "g4dn.12xlarge": 3.912,
    "g5.xlarge": 1.006,
    "g5.12xlarge": 5.672,
    "g5.48xlarge": 16.288,
    "g6.xlarge": 0.805,
    "p3.2xlarge": 3.06,
    "p4d.24xlarge": 21.958,
    "p5.48xlarge": 55.04,
}


def _prices(operation: str, params: Params) -> Params:
    if operation != "GetProducts":
        raise ApiError("UnsupportedOperation", f"This fake's pricing has no {operation}.")
    expected = {entry["Field"]: entry["Value"] for entry in params.get("Filters", [])}
    name = expected.get("instanceType", "")
    product = {
        "product": {"attributes": {"instanceType": name, "operatingSystem": "Linux"}},
        "terms": {
            "OnDemand": {
                "T": {
                    "priceDimensions": {
                        "D": {"unit": "Hrs", "pricePerUnit": {"USD": str(HOURLY_USD.get(name))}}
                    }
                }
            }
        },
    }
    return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(product)] if name in HOURLY_USD else []}
