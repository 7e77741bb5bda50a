"""The plan of `up`, for people and as JSON. Pure; imports rich to draw.

Prices are list prices of everything that is billed by the hour, machines, disks, addresses and NAT gateways together.
An unknown price is shown as such, and is null in JSON.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpuctl.command_results import same_fields
from gpuctl.command_results.clusters import SetupPlan, SshAccess, UpPlan
from gpuctl.text import clean, nothing_ends
from gpuctl.workflow.machines.setup_state import NO_SETUP, Setup
from inventories.machine import Inventory
from inventories.text import dollars, plural
from provision.clouds import KUBERNETES, RENTED, refresh_command
from provision.provider import DAY_S, Plan
from provision.records import PlannedResource, Terms
from provision.rented.planning.drivers import system_of

if TYPE_CHECKING:
    from rich.console import RenderableType

SAMPLE_S = 3 * 3600.0
"""Time whose cost is shown if machines live as long: a common measure of plans that end at different times."""

NOUNS = {
    "instance": "machine",
    "vcn": "VCN",
    "vpc": "VPC",
    "nsg": "network security group",
    "nat-gateway": "NAT gateway",
    "elastic-ip": "Elastic IP address",
    "vpc-endpoint": "VPC endpoint",
}
"""Kinds of resources that are not called by their own name."""
COUNTED = ("instance", "boot-volume", "public-address", "host", "pod", "role")


def drawn(plan: Plan, setup: Setup = NO_SETUP) -> "RenderableType":
    """Return the plan for people: a line a resource, then the facts about all machines, the price last."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from gpuctl.tables.layout import table_of

    where = " · ".join(part for part in (plan.provider, plan.region or "") if part)
    head = Text.assemble(("Plan for cluster ", ""), (plan.spec.cluster, "bold"), f"  {where}")
    parts: list[RenderableType] = [head, ""]
    if plan.resources:
        columns = ("", "resource", "what", "an hour")
        table = table_of(*columns, right=("an hour",), flexible=("what",))
        for resource in plan.resources:
            style = "green" if resource.action == "create" else "red" if resource.action == "end" else "dim"
            table.add_row(Text(resource.action, style), *(clean(cell) for cell in _cells(resource)))
        parts += [table, ""]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    steps = []
    if setup.steps and setup.machines:
        steps = [("setup", f"once on {setup.where}:", "")]
        steps += [("", f"{number}. {step}", "") for number, step in enumerate(setup.steps, 1)]
    notes = [("note", note, "") for note in plan.notes]
    for label, text, style in (*_facts(plan), *steps, *notes, *_price_rows(plan)):
        facts.add_row(Text(label, "dim"), Text(clean(text), style))
    parts += [facts]
    if not plan.changes and not plan.requests:
        parts.append(Text("nothing to create: the machines are as asked for"))
    return Group(*parts)


def _cells(resource: PlannedResource) -> tuple[str, str, str]:
    noun = NOUNS.get(resource.kind, resource.kind.replace("-", " "))
    if resource.kind in COUNTED:
        noun = plural(resource.count, noun)
    text = ", ".join(part for part in (resource.name, resource.detail) if part)
    usd = resource.hourly_usd
    return noun, text, "" if usd == 0 else "not known" if usd is None else dollars(usd)


def _facts(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield label, text and style of the facts about all machines."""
    yield from _boots_from(plan)
    if plan.ssh_cidrs:
        port = "" if plan.ssh_port == 22 else f", port {plan.ssh_port}"
        unknown = f" (not known: {plan.ssh_unknown}; --ssh-cidr names it)"
        cidrs = ", ".join(plan.ssh_cidrs)
        if plan.provider in KUBERNETES:
            yield "access", f"to the API server from {cidrs}{unknown if plan.ssh_unknown else ''}", ""
        else:
            note = unknown if plan.ssh_unknown else ", with a key of the cluster's own"
            yield "SSH", f"from {cidrs}{port}{note}", ""
    if plan.free:
        return
    if plan.idle:
        yield "idle", plan.idle, ""
    if plan.until_s is None and plan.ends_unused:
        return
    if plan.until_s is None:
        yield "ends", _nothing_ends(plan), "yellow"
    elif not plan.ttl_ends_bill:
        day = nothing_ends(plan.cost_usd(DAY_S), f". After {span(plan.until_s)} {plan.ending}")
        yield "ends", day, "bold yellow"
    else:
        yield "ends", ": ".join(part for part in (f"in {span(plan.until_s)}", plan.ending) if part), ""


def _nothing_ends(plan: Plan) -> str:
    """Return the daily cost of a plan without a time limit, and the option or the command that ends its machines."""
    limited = plan.provider in RENTED and plan.ttl_ends_bill and not plan.keep
    advice = "add --ttl 4h" if limited else f"`gpuctl down --cluster {plan.spec.cluster}` ends them"
    return nothing_ends(plan.total_usd, f" ({advice})")


def _boots_from(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield rows, as `_facts`, of the image: its name and reason, its driver, its terms."""
    if plan.image is not None:
        yield "image", f"{plan.image} ({plan.image_why})" if plan.image_why else plan.image, ""
        yield "driver", _driver(plan), ""
    if plan.terms is not None:
        yield "terms", _terms(plan.terms, accepted=plan.spec.accept_terms), "yellow"


def _price_rows(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield rows, as `_facts`, of the price."""
    if plan.free:
        yield "price", "free", "bold"
        return
    yield "price", costs(plan), "bold"
    if plan.until_s is not None and plan.until_s < plan.least_billed_s:
        yield "", f"the cloud bills these machines for {span(plan.least_billed_s)} at least", ""
    if plan.run_hourly_usd is not None:
        yield (
            "",
            f"{dollars(plan.run_hourly_usd)} an hour while a run has all machines that it may start",
            "bold",
        )
    now_usd, most_usd = plan.hourly_usd, plan.price.most_hourly_usd
    if most_usd is None and now_usd is not None:
        command = refresh_command(plan.provider, plan.region)
        yield "", f"spot machines at the price of now, which changes: at most what `{command}` tells", ""
    if most_usd is None:
        return
    if now_usd is not None and most_usd > now_usd:
        yield (
            "",
            f"spot machines at the price of now, which changes: at most {dollars(most_usd)} an hour",
            "",
        )
    yield "", "list prices, without taxes, traffic and discounts", "dim"


def _terms(terms: Terms, *, accepted: bool) -> str:
    if terms.links:
        return f"of {terms.name}, accepted{'' if accepted else ' with a yes'}: {' '.join(terms.links)}"
    acceptance = "accepted" if accepted else "which --accept-terms accepts, or a yes on a terminal"
    return f"of {terms.name}, {acceptance}; the account shows where they are"


def _driver(plan: Plan) -> str:
    if plan.driver is None:
        return "not known without the account"
    if plan.driver.source == "none" and plan.spec.driver == "none" and plan.image:
        system = system_of(plan.image)
        if system.brings_driver or not system.ubuntu:
            source = "the image's own" if system.brings_driver else "the image's own, if it has one"
            return f"{source}, not checked (--driver none)"
    driver = plan.driver
    if driver.source == "install":
        branch = f"branch {driver.version}" if driver.version else "the newest branch that fits"
        return f"installed on the machines: Ubuntu's packages, {branch}"
    return "the image's own" if driver.source == "image" else "none is installed"


def standing_notes(plan: Plan) -> Iterator[str]:
    """Yield the notes that a plan needs even without a question to the user."""
    yield from plan.notes
    if plan.free or not plan.create:
        return
    yield from (f"{label}: {text}" for label, text, _ in _boots_from(plan))
    if plan.idle:
        yield plan.idle
    if plan.until_s is None and plan.ends_unused:
        return
    if plan.until_s is None:
        yield _nothing_ends(plan)
    elif not plan.ttl_ends_bill:
        yield nothing_ends(plan.cost_usd(DAY_S), f". After {span(plan.until_s)} {plan.ending}")


def costs(plan: Plan) -> str:
    """`$8.02 an hour · $24.07 for 3 h · $32.09 for the 4 h until they end`."""
    hourly_usd, most_usd = plan.hourly_usd, plan.price.most_hourly_usd
    known = most_usd if hourly_usd is None else hourly_usd
    if known is None:
        command = refresh_command(plan.provider, plan.region)
        return f"not known: `{command}` asks for it" if command else "not known"
    prefix = "at most " if hourly_usd is None else ""
    ends_s = DAY_S if plan.until_s is None else plan.until_s
    until = " until they end" if plan.ttl_ends_bill else ""
    end = "a day" if plan.until_s is None else f"for the {span(ends_s)}{until}"
    spans = {SAMPLE_S: f"for {span(SAMPLE_S)}"} if ends_s >= SAMPLE_S else {}
    spans[ends_s] = end
    texts = [f"{prefix}{dollars(known)} an hour"]
    for seconds in sorted(spans):
        billed_s = max(seconds, plan.least_billed_s)
        texts.append(f"{dollars(known * billed_s / 3600)} {spans[seconds]}")
    return " · ".join(texts)


def price(plan: Plan) -> str:
    """`$8.02 an hour, $32.09 until they end`: of all machines, in a clause."""
    hourly_usd = plan.hourly_usd
    endless = "they end without use" if plan.ends_unused else "nothing ends them"
    prefix = ""
    if hourly_usd is None:
        hourly_usd, prefix = plan.price.most_hourly_usd, "at most "
    if hourly_usd is None:
        return "price not known" + (f", and {endless}" if plan.until_s is None else "")
    if plan.until_s is None:
        a_day = dollars(hourly_usd * 24)
        return f"{prefix}{dollars(hourly_usd)} an hour, {a_day} a day, and {endless}"
    total = dollars(hourly_usd * max(plan.until_s, plan.least_billed_s) / 3600)
    until = "until they end" if plan.ttl_ends_bill else f"for {span(plan.until_s)}, and nothing ends them"
    return f"{prefix}{dollars(hourly_usd)} an hour, {total} {until}"


def run_price(plan: Plan) -> str:
    """Return the price of machines that are made for a run, or ended after it."""
    usd = plan.hourly_usd
    hourly = "price not known" if usd is None else f"{dollars(usd)} an hour in all"
    return f"{hourly}, until the run is over" if plan.create else hourly


def progress_text(plan: Plan) -> str:
    """`creating 2 machines`, `creating a control plane`, `ending 2 machines`."""
    made = [plural(len(plan.create), "machine")] * bool(plan.create)
    made += ["a control plane"] * plan.makes_control_plane
    parts = [f"creating {' and '.join(made)}"] * bool(made)
    return ", ".join([*parts, *[f"ending {plural(len(plan.end), 'machine')}"] * bool(plan.end)])


def question(plan: Plan, ending: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the question to the user before anything billed is made, or a machine ends.

    `ending`: machines that a smaller count ends, with their files: id → name.
    """
    count = len(plan.create) + len(plan.keep)
    whole = f"{count} in all: " if plan.keep else ""
    nothing = "a control plane" if plan.makes_control_plane else plural(0, "machine")
    made = plural(len(plan.create), "machine") if plan.create else nothing
    create = f"Create {made}" if plan.create or not plan.end else ""
    names, unneeded = sorted(ending.values()), [machine for machine in plan.end if machine not in ending]
    parts = [f"{', '.join(names)} with the files there"] * bool(names)
    parts += [f"{', '.join(unneeded)}, which no rank needs"] * bool(unneeded)
    end = f"end {' and '.join(parts)}" if parts else ""
    todo = " and ".join(part for part in (create, end) if part)
    open_terms = plan.terms if not plan.spec.accept_terms else None
    terms = f" and accept the terms of {open_terms.name}" if open_terms else ""
    cost = "free" if plan.free else price(plan)
    return f"{todo[0].upper()}{todo[1:]} ({whole}{cost}){terms}?"


def what_changed(plan: Plan, before: Inventory | None, inventory: Inventory) -> str:
    """Return the changes of an `up`, in a clause."""
    cluster, count = inventory.cluster, plural(len(inventory.machines), "machine")
    replaced = sum(1 for machine in plan.create if machine.replaces)
    new = len(plan.create) - replaced
    parts = [f"{new} created"] * bool(new) + [f"{replaced} replaced"] * bool(replaced)
    parts += [f"{len(plan.end)} ended"] * bool(plan.end)
    if before is not None:
        planned = {machine.name for machine in plan.create}
        had = {(machine.host, machine.port): machine for machine in before.machines}
        unplanned = [machine for machine in inventory.machines if machine.name not in planned]
        added = sum(1 for machine in unplanned if (machine.host, machine.port) not in had)
        parts += [f"{added} added"] * bool(added)
        pairs = [(had[m.host, m.port], m) for m in unplanned if (m.host, m.port) in had]
        if any(old.python != now.python for old, now in pairs):
            parts.append("another interpreter")
        same = all(replace(now, state=old.state, gpus=old.gpus) == old for old, now in pairs)
        if same and not parts and not plan.changes:
            return f"nothing changed: the cluster {cluster} has {count}, as asked for"
    return f"the cluster {cluster} is up: {', '.join([count, *parts])}"


def up_line(inventory: Inventory) -> str:
    """Return a line on a cluster that is up: its machines, and their price."""
    machines = plural(len(inventory.machines), "machine")
    shape = f" {inventory.shape}" if inventory.shape else ""
    price = f", {dollars(inventory.hourly_usd)} an hour" if inventory.hourly_usd else ""
    return f"cluster {inventory.cluster}: {machines}{shape}{price}"


def requests_text(plan: Plan) -> str:
    """Return the requests, one line each: the operation and its body as JSON."""
    lines = [
        f"{request.operation} {json.dumps(request.body, ensure_ascii=False)}" for request in plan.requests
    ]
    return "\n".join(["", plural(len(lines), "request"), *lines])


def document(plan: Plan, setup: Setup = NO_SETUP, *, account_asked: bool = True) -> UpPlan:
    """Return the plan as `up --dry-run --json` shows it. `account_asked`: the account's resources are known."""
    ssh = SshAccess(cidrs=plan.ssh_cidrs, port=plan.ssh_port, unknown=plan.ssh_unknown or None)
    return UpPlan(
        **same_fields(UpPlan, plan)
        | {
            "cluster": plan.spec.cluster,
            "account_asked": account_asked,
            "keep": tuple(machine.public() for machine in plan.keep),
            "ssh": ssh if plan.ssh_cidrs else None,
            "setup": SetupPlan(steps=setup.steps, machines=setup.machines),
        }
    )


def span(seconds: float) -> str:
    """`30 s`, `45 min`, `1 h 30 min`, `4 h`, `2 d 3 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    days, hours = divmod(hours, 24) if hours >= 48 else (0, hours)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)
