"""`gpuctl shapes`: the machine shapes there are, what they have and what they cost."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gpuctl.app import App
from gpuctl.command_line import completions
from gpuctl.command_line.options import no_cluster_options
from provision.clouds import CLOUDS

if TYPE_CHECKING:
    from provision.clouds import Shape
    from provision.pricing.prices import Price, Prices

SORTS = ("price", "price-per-gpu", "name")
NOT_WHOLE = "The clouds have more shapes than are listed here: `gpuctl up --shape NAME` takes those, too."

Priced = tuple["Shape", "Price | None"]


@click.command()
@no_cluster_options
@click.argument("words", nargs=-1, metavar="[NAME|GPU]...", shell_complete=completions.shapes)
@click.option("--gpu", metavar="G", help="Only this GPU, such as A10, and its variants.")
@click.option(
    "--gpus",
    "--count",
    "gpus",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only shapes with exactly N GPUs. --count also means GPUs, not machines.",
)
@click.option("--min-gpus", type=click.IntRange(min=1), metavar="N", help="Only shapes with N GPUs or more.")
@click.option("--provider", type=click.Choice(tuple(CLOUDS)), help="Only shapes of this provider.")
@click.option(
    "--max-price", type=click.FloatRange(min=0), metavar="USD", help="Only up to this price an hour."
)
@click.option("--sort", type=click.Choice(SORTS), default="price", help="Order of the rows (default: price).")
@click.option("--region", metavar="R", help="AWS region of the prices (default: us-east-1).")
@click.option("--refresh-prices", is_flag=True, help="Ask the providers for today's prices, and keep them.")
def command(
    app: App,
    words: tuple[str, ...],
    gpu: str | None,
    gpus: int | None,
    min_gpus: int | None,
    provider: str | None,
    max_price: float | None,
    sort: str,
    region: str | None,
    refresh_prices: bool,
) -> None:
    """List or search machine shapes: GPUs, networks, list prices.

    \b
    gpuctl shapes VM.GPU.A10.2                         all that is known about one
    gpuctl shapes A10 --gpus 4                         by GPU (A10, and A10G) and GPUs a machine
    gpuctl shapes BM.GPU g5                            by the beginnings of names
    gpuctl shapes --gpu H100 --sort price-per-gpu      the cheapest H100
    gpuctl shapes --min-gpus 4 --max-price 15          four GPUs or more for $15 an hour
    gpuctl shapes --refresh-prices --region eu-west-1  today's prices, AWS's in Ireland

    Prices are list prices on demand, without disks and traffic. --refresh-prices reads the providers' public
    price lists; no account is needed. AWS's list has several hundred MB: --provider oci leaves it out. `gpuctl up
    --shape NAME` also takes shapes that are not listed, if the provider has them.
    """
    from gpuctl.shape_names import nothing
    from provision.pricing.prices import load

    if max_price is not None and not math.isfinite(max_price):
        raise click.UsageError("--max-price is a number of US dollars.")
    region = of_prices(app, region)
    shapes, exact = chosen(app, words, gpu, provider)
    failed = refresh(app, provider, region) if refresh_prices else None
    prices = load(app.store.home)
    priced = [
        (shape, prices.of(shape.name, region))
        for shape in shapes
        if shape.gpus >= (min_gpus or 1) and gpus in (None, shape.gpus)
    ]
    rows = ordered([row for row in priced if affordable(row, max_price)], sort)
    if app.options.json:
        app.output.json(document(rows, region))
    elif not rows:
        app.output.say(nothing(shapes, gpus))
    else:
        show(app, rows, region, in_full=exact)
    tell_unknown(app, priced, prices, region, max_price)
    if rows and not exact and not app.options.json:
        tell_not_launched(app, [shape for shape, _ in rows])
        app.output.say(NOT_WHOLE)
    if failed is not None:
        raise failed


def of_prices(app: App, region: str | None) -> str | None:
    """Return the region of the prices. None: the cloud has the same prices everywhere."""
    from provision.clouds import describe, descriptions, likely_cloud_of

    owner = None if region is None else likely_cloud_of(region)
    if owner is None or describe(owner).price_region is not None:
        return region
    regions = [
        f"{cloud.name.upper()}'s are those of {cloud.price_region}"
        for cloud in descriptions()
        if cloud.price_region
    ]
    app.output.say(
        f"note: {region} is a region of {owner.upper()}, whose prices are the same everywhere; {', '.join(regions)}."
    )
    return None


def chosen(
    app: App, words: Sequence[str], gpu: str | None, provider: str | None
) -> "tuple[list[Shape], bool]":
    """Return the shapes of these names, GPU and provider, and whether each name is complete.

    Raises Usage for a name that no shape and no GPU has.
    """
    from gpuctl.shape_names import by_gpu, find
    from provision.pricing.catalog import SHAPES

    named = find(words) if words else None
    of_gpu = by_gpu(gpu) if gpu is not None else None
    for match in (named, of_gpu):
        for note in match.notes if match is not None else ():
            app.output.say(note)
    shapes = [
        shape
        for shape in SHAPES.values()
        if provider in (None, shape.provider)
        and all(match is None or shape.name in match.names for match in (named, of_gpu))
    ]
    return shapes, named is not None and named.exact


def refresh(app: App, provider: str | None, region: str | None) -> Exception | None:
    """Ask for today's prices. Returns the error to raise at the end, if a provider did not answer."""
    from datetime import UTC, datetime

    from gpuctl.errors import Attention, Failed
    from inventories.text import plural
    from provision.pricing.prices import refresh as ask

    providers = tuple(CLOUDS) if provider is None else (provider,)
    done = ask(app.store.home, providers, region, datetime.now(UTC), app.output.say)
    for answer in done.got:
        where = f" in {answer.region}" if answer.region else ""
        app.output.say(f"{answer.provider.upper()}: {plural(len(answer.usd_per_hour), 'price')}{where}")
    if not done.failed:
        return None
    why = " ".join(done.failed)
    if done.got:
        return Attention(f"{why} The other prices were refreshed.")
    return Failed(f"{why} The prices are the ones that were known before; their date is shown with them.")


def affordable(row: Priced, max_price: float | None) -> bool:
    """Return whether a machine costs at most `max_price`. An unknown price counts as higher."""
    _, price = row
    return max_price is None or (price is not None and price.usd_per_hour <= max_price)


def ordered(rows: Sequence[Priced], sort: str) -> list[Priced]:
    """Return the shapes by price, price of a GPU or name. Shapes of unknown price are last."""

    def key(row: Priced) -> tuple[float, str]:
        shape, price = row
        if sort == "name":
            return 0.0, shape.name.casefold()
        usd = math.inf if price is None else price.usd_per_hour
        return usd / (shape.gpus if sort == "price-per-gpu" else 1), ""

    return sorted(rows, key=key)


def document(rows: Sequence[Priced], region: str | None) -> dict[str, Any]:
    """Return the document of `shapes --json`. The date is that of the oldest price."""
    prices = [price for _, price in rows if price is not None]
    return {
        "shapes": [describe(*row, region) for row in rows],
        "prices": {
            "date": min((price.date for price in prices), default=None),
            "source": "; ".join(dict.fromkeys(price.source for price in prices)) or None,
        },
    }


def describe(shape: "Shape", price: "Price | None", region: str | None) -> dict[str, Any]:
    """Return a shape of the document."""
    from provision.clouds import price_region

    usd = None if price is None else price.usd_per_hour
    return {
        "name": shape.name,
        "provider": shape.provider,
        "gpus": shape.gpus,
        "gpu": shape.gpu,
        "gpu_memory_gb": shape.gpu_memory_gb,
        "network": shape.network or None,
        "network_gbps": shape.network_gbps if shape.network else None,
        "rdma": shape.rdma or None,
        "rdma_gbps": shape.rdma_gbps,
        "efa": shape.efa,
        "placement_group": shape.placement_group,
        "bare_metal": shape.bare_metal,
        "compute_cluster": shape.compute_cluster,
        "not_launched": shape.not_launched or None,
        "usd_per_hour": usd,
        "usd_per_gpu_hour": None if usd is None else round(usd / shape.gpus, 6),
        "priced_at": None if price is None else price.date,
        "price_region": price_region(shape.provider, region),
        "price_source": None if price is None else price.source,
    }


def show(app: App, rows: Sequence[Priced], region: str | None, *, in_full: bool) -> None:
    """Print the table, with date and source of the prices. `in_full`: all details of each shape."""
    from gpuctl.tables.lists import shapes_table
    from gpuctl.tables.shape import shape_in_full

    documents = [describe(*row, region) for row in rows]
    if not in_full:
        app.output.table(shapes_table(documents))
        return
    for at, shape in enumerate(documents):
        if at:
            app.output.text("")
        app.output.table(shape_in_full(shape))


def tell_unknown(
    app: App, priced: Sequence[Priced], prices: "Prices", region: str | None, max_price: float | None
) -> None:
    """Say of which shapes the price is not known, and what to do."""
    from inventories.text import plural
    from provision import clouds
    from provision.clouds import price_region, refresh_command

    unknown = [shape for shape, price in priced if price is None]
    for provider in dict.fromkeys(shape.provider for shape in unknown):
        names = [shape.name for shape in unknown if shape.provider == provider]
        left_out = f" --max-price leaves {plural(len(names), 'shape')} out." if max_price is not None else ""
        place = price_region(provider, region)
        where = f" in {place}" if place else ""
        # A release has the prices of most shapes of that region.
        shipped = place == clouds.describe(provider).price_region
        of = f" of {', '.join(names)}" if shipped else ""
        if place and prices.list_of(provider, region) is None:
            app.output.say(
                f"{provider.upper()}'s prices{of}{where} are not known here.{left_out} "
                f"Ask for them: {refresh_command(provider, region)}"
            )
        else:
            app.output.say(f"{provider.upper()} lists no price{where} of {', '.join(names)}.{left_out}")


def tell_not_launched(app: App, shapes: "Sequence[Shape]") -> None:
    """Say which of the shapes gpuctl launches no machines of, and why."""
    for reason in dict.fromkeys(shape.not_launched for shape in shapes if shape.not_launched):
        names = ", ".join(shape.name for shape in shapes if shape.not_launched == reason)
        app.output.say(f"{names}: not by gpuctl, as {reason}.")
