"""The table of one shape. Imports rich: import this module where you print."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from gpuctl.tables.layout import table_of
from inventories.text import plural


def shape_in_full(shape: Mapping[str, Any]) -> RenderableType:
    """A line a fact; `shape` is an element of the document of `shapes --json`."""
    table = table_of("", "", flexible=("",))
    table.show_header = False
    for name, value in _facts(shape):
        table.add_row(Text(name, "dim"), Text(value, "bold") if name == "shape" else value)
    return table


def _facts(shape: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    gpus, memory_gb = shape["gpus"], shape["gpu_memory_gb"]
    machine = "bare metal" if shape["bare_metal"] else "virtual machine"
    together = f" ({gpus * memory_gb} GB together)" if gpus > 1 else ""
    yield "shape", shape["name"]
    yield "provider", f"{shape['provider']}, {machine}"
    yield "GPUs", f"{gpus} x {shape['gpu']}, {memory_gb} GB each{together}"
    yield "network", f"{shape['network']} Gbps" if shape["network"] else "not known"
    if shape["rdma"]:
        yield "RDMA", f"{shape['rdma']} Gbps, in a compute cluster"
    if shape["efa"]:
        yield "EFA", f"{plural(shape['efa'], 'interface')}, which share the network's bandwidth"
    if shape["placement_group"]:
        yield "placement", "a cluster placement group takes it"
    price = "not known"
    if (usd := shape["usd_per_hour"]) is not None:
        each = f", ${shape['usd_per_gpu_hour']:,.3f} a GPU" if gpus > 1 else ""
        where = f" in {shape['price_region']}" if shape["price_region"] else ""
        source = f"list price on demand{where} of {shape['priced_at']} ({shape['price_source']})"
        price = f"${usd:,.3f} an hour{each}: {source}"
    yield "price", price
    if shape["not_launched"]:
        yield "launch", f"not by gpuctl, as {shape['not_launched']}"
        return
    yield "see the plan", f"gpuctl up --shape {shape['name']} --count 2 --dry-run"
