"""The vendors' price lists, as small documents in their real format, on a web server of loopback."""

import csv
import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OCI_PATH = "/pls/apex/cetools/api/v1/products/"
AWS_PATH = "/offers/v1.0/aws/AmazonEC2/current/region_index.json"
AWS_FILES = "/offers/v1.0/aws/AmazonEC2/20261118200519/"

# fmt: off
AWS_COLUMNS = (
    "SKU", "OfferTermCode", "RateCode", "TermType", "PriceDescription", "EffectiveDate", "StartingRange",
    "EndingRange", "Unit", "PricePerUnit", "Currency", "RelatedTo", "LeaseContractLength", "PurchaseOption",
    "OfferingClass", "Product Family", "serviceCode", "Location", "Location Type", "Instance Type",
    "Current Generation", "Instance Family", "vCPU", "Physical Processor", "Clock Speed", "Memory",
    "Storage", "Network Performance", "Processor Architecture", "Storage Media", "Volume Type",
    "Max Volume Size", "Max IOPS/volume", "Max IOPS Burst Performance", "Max throughput/volume",
    "Provisioned", "Tenancy", "EBS Optimized", "Operating System", "License Model", "Group",
    "Group Description", "Transfer Type", "From Location", "From Location Type", "To Location",
    "To Location Type", "usageType", "operation", "AvailabilityZone", "CapacityStatus",
    "ClassicNetworkingSupport", "Dedicated EBS Throughput", "ECU", "Elastic Graphics Type",
    "Enhanced Networking Supported", "From Region Code", "GPU", "GPU Memory", "Instance", "instanceSKU",
    "Intel AVX2 Available", "MarketOption", "Normalization Size Factor", "Physical Cores",
    "Pre Installed S/W", "Processor Features", "Product Type", "Region Code", "Resource Type",
    "serviceName", "SnapshotArchiveFeeType", "To Region Code", "Volume API Name", "VPCNetworkingSupport",
)
# fmt: on
AWS_MACHINE = {
    "SKU": "EXAMPLE9SKU9CODE",
    "OfferTermCode": "JRTCKXETXF",
    "RateCode": "EXAMPLE9SKU9CODE.JRTCKXETXF.6YS6EN2CT7",
    "TermType": "OnDemand",
    "PriceDescription": "$1.006 per On Demand Linux g5.xlarge Instance Hour",
    "EffectiveDate": "2026-11-01",
    "StartingRange": "0",
    "EndingRange": "Inf",
    "Unit": "Hrs",
    "PricePerUnit": "1.0060000000",
    "Currency": "USD",
    "Product Family": "Compute Instance",
    "serviceCode": "AmazonEC2",
    "Location": "US East (N. Virginia)",
    "Location Type": "AWS Region",
    "Instance Type": "g5.xlarge",
    "Current Generation": "Yes",
    "Tenancy": "Shared",
    "Operating System": "Linux",
    "License Model": "No License required",
    "usageType": "BoxUsage:g5.xlarge",
    "operation": "RunInstances",
    "CapacityStatus": "Used",
    "GPU": "1",
    "MarketOption": "OnDemand",
    "Pre Installed S/W": "NA",
    "Region Code": "us-east-1",
    "serviceName": "Amazon Elastic Compute Cloud",
}
"""A line of AWS's file: a plain Linux machine on demand."""


def oci_product(part: str, usd: object, name: str = "Compute  - GPU - A10", **more: object) -> dict[str, Any]:
    """Return a product of OCI's price list."""
    return {
        "partNumber": part,
        "displayName": name,
        "metricName": "GPU Per Hour",
        "serviceCategory": "Compute - GPU",
        "currencyCodeLocalizations": [
            {"currencyCode": "USD", "prices": [{"model": "PAY_AS_YOU_GO", "value": usd}]}
        ],
    } | more


def oci_page(*products: object) -> bytes:
    """Return OCI's price list as a document."""
    return json.dumps({"lastUpdated": "2026-11-14T09:09:55.872Z", "items": products}, indent=1).encode()


def aws_index(*regions: str) -> bytes:
    """AWS's index of regions."""
    listed = {
        region: {"regionCode": region, "currentVersionUrl": f"{AWS_FILES}{region}/index.json"}
        for region in regions
    }
    document = {
        "formatVersion": "v1.0",
        "disclaimer": "This pricing list is for informational purposes only.",
        "publicationDate": "2026-11-18T20:05:19Z",
        "regions": listed,
    }
    return json.dumps(document, indent=2).encode()


def aws_file(*machines: Mapping[str, str]) -> bytes:
    """Return AWS's price file of a region. A machine is its difference from `AWS_MACHINE`; empty fields are not
    quoted.
    """
    lines = [
        '"FormatVersion","v1.0"',
        '"Disclaimer","This pricing list is for informational purposes only. All prices are subject to terms."',
        '"Publication Date","2026-11-18T20:05:19Z"',
        '"Version","20261118200519"',
        '"OfferCode","AmazonEC2"',
        aws_line(dict(zip(AWS_COLUMNS, AWS_COLUMNS, strict=True))),
        *(aws_line(AWS_MACHINE | machine) for machine in machines),
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def aws_line(fields: Mapping[str, str]) -> str:
    """Return one line of AWS's price file."""
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerow([fields.get(column, "") for column in AWS_COLUMNS])
    return text.getvalue().strip().replace('""', "")


Page = bytes | int | Callable[[BaseHTTPRequestHandler], None]
"""A body; or a status without a body; or a handler of the request."""


@contextmanager
def served(pages: Mapping[str, Page]) -> Iterator[str]:
    """Serve these pages, path → page; yield the address without a slash at the end."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0], 404)
            if callable(page):
                page(self)
            elif isinstance(page, int):
                self.send_error(page)
            else:
                self.send_response(200)
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environment(address: str) -> dict[str, str]:
    """Return the variables that point gpuctl to such a server."""
    return {
        "GPUCTL_OCI_PRICE_URL": f"{address}{OCI_PATH}?currencyCode=USD",
        "GPUCTL_AWS_PRICE_URL": f"{address}{AWS_PATH}",
        "no_proxy": "127.0.0.1",
    }
