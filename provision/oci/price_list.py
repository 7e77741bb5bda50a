"""OCI's public price list: one small JSON document for all commercial regions."""

import os
from typing import Any

from provision.clouds import PublicPrices
from provision.oci.catalog import SHAPES
from provision.pricing.price_list import NotUsable, document, price_of, used
from provision.waiting import Say

URL_VARIABLE = "GPUCTL_OCI_PRICE_URL"
"""Variable with another address for the list."""
URL = "https://apexapps.oracle.com/pls/apex/cetools/api/v1/products/?currencyCode=USD"

PARTS = {
    "VM.GPU2.1": "B88518",
    "VM.GPU3.1": "B89734",
    "VM.GPU3.2": "B89734",
    "VM.GPU3.4": "B89734",
    "VM.GPU.A10.1": "B95909",
    "VM.GPU.A10.2": "B95909",
    "BM.GPU.A10.4": "B95909",
    "BM.GPU3.8": "B89734",
    "BM.GPU4.8": "B92740",
    "BM.GPU.A100-v2.8": "B95907",
    "BM.GPU.L40S.4": "B109479",
    "BM.GPU.H100.8": "B98415",
    "BM.GPU.H200.8": "B110519",
    "BM.GPU.B200.8": "B110978",
    "BM.GPU.B300.8": "B112237",
    "BM.GPU.RTXPRO.8": "B112613",
    "BM.GPU.GB200.4": "B110979",
    "BM.GPU.GB300.4": "B112140",
}
"""Shape → the part number by which OCI bills an hour of one of its GPUs. Names of parts are less stable, and
licences are called almost the same."""


def read(_region: str, _say: Say) -> PublicPrices:
    """Return OCI's prices for the shapes of the catalog. Raises CloudError."""
    url = os.environ.get(URL_VARIABLE) or URL
    return PublicPrices(url=url, usd_per_hour=used("OCI", url, lambda: prices(document("OCI", url))))


def prices(answer: object) -> dict[str, float]:
    """Return shape → USD an hour of the whole machine, of OCI's document. Raises NotUsable for one without prices."""
    items = answer.get("items") if isinstance(answer, dict) else None
    if not isinstance(items, list):
        raise NotUsable("it has no list of products")
    gpus = {shape.name: shape.gpus for shape in SHAPES}
    a_gpu: dict[str, float] = {}
    for item in _objects(items):
        if item.get("metricName") != "GPU Per Hour":
            continue
        values = [
            price.get("value")
            for place in _objects(item.get("currencyCodeLocalizations"))
            if place.get("currencyCode") == "USD"
            for price in _objects(place.get("prices"))
            if price.get("model") == "PAY_AS_YOU_GO"
        ]
        if len(values) == 1 and (usd := price_of(values[0])) is not None:
            a_gpu[str(item.get("partNumber"))] = usd
    usd_per_hour = {
        shape: round(a_gpu[part] * gpus[shape], 6) for shape, part in PARTS.items() if part in a_gpu
    }
    if not usd_per_hour:
        raise NotUsable("it has no price of any GPU that gpuctl knows")
    return usd_per_hour


def _objects(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list. Empty: the value is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
