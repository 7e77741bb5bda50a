"""Limits on the cost and the time of a cluster: plain arithmetic, without a clock."""

import math
import shlex
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from inventories.errors import InvalidInput
from inventories.specs.checks import MIN_TTL_S
from inventories.text import dollars
from provision.clouds import refresh_command
from provision.errors import RefusedPlan
from provision.records import Target, read_time

_UNITS_S = (("d", 86_400), ("h", 3600), ("m", 60))


def expires_at(now: datetime, ttl_s: float) -> str:
    """Return the end of machines made at `now` for `ttl_s`: ISO 8601 in UTC, whole seconds.

    Raises InvalidInput for an end after the calendar's.
    """
    try:
        end = now.astimezone(UTC) + timedelta(seconds=math.ceil(ttl_s))
    except OverflowError as error:
        raise InvalidInput(
            f"--ttl {_duration(ttl_s)} can't be used: that is after the year 9999. Leave it out for no limit."
        ) from error
    return end.isoformat(timespec="seconds")


def reap_command(target: Target, option: str = "--expired") -> str:
    """Return the command that removes expired clusters from the target, on any computer. `option`: or unused ones."""
    words = ["gpuctl", "reap", option, "--yes", "--provider", target.provider]
    for option in ("region", "compartment", "profile"):
        value = getattr(target, option)
        words += [f"--{option}", value] if value else []
    return shlex.join(words)


def refuse_over_max_cost(
    hourly_usd: float | None,
    ttl_s: float | None,
    max_cost_usd: float | None,
    target: Target,
    least_s: float = 0.0,
) -> None:
    """Raise RefusedPlan for a cluster that could cost more than the limit, with the longest time within it.

    A limit refuses an unknown price (`hourly_usd`), and no time limit, too. `least_s`: shortest time that the
    machines are billed for.
    """
    if max_cost_usd is None or hourly_usd == 0:
        return
    limit = f"--max-cost {_amount(max_cost_usd)}"
    if hourly_usd is None:
        raise RefusedPlan(
            f"{limit} can't be kept: what these machines can cost is not known. Nothing was created. Ask for "
            f"the prices with `{refresh_command(target.provider, target.region)}`, or leave --max-cost out."
        )
    lasts_s = max_cost_usd / hourly_usd * 3600
    longest = _duration(lasts_s) if lasts_s >= max(MIN_TTL_S, least_s) else ""
    if ttl_s is None:
        raise RefusedPlan(
            f"{limit} can't be kept without a time limit. Nothing was created. At {dollars(hourly_usd)} an hour "
            + (
                f"the money lasts for {longest}: add --ttl {longest}."
                if longest
                else "it does not last until they have booted."
            )
        )
    billed_s = max(ttl_s, least_s)
    cost_usd = hourly_usd * billed_s / 3600
    minimum = ", the least that is billed," if billed_s > ttl_s else ""
    if cost_usd > max_cost_usd * (1 + 1e-9):
        raise RefusedPlan(
            f"{_duration(billed_s) or f'{billed_s:g}s'}{minimum} at {dollars(hourly_usd)} an hour cost "
            f"{dollars(cost_usd)}, "
            f"more than {limit}. Nothing was created. Ask for fewer machines, a cheaper shape"
            + (f", --ttl {longest}" if longest else "")
            + f" or --max-cost {_amount(math.ceil(cost_usd * 100) / 100)}."
        )


def cost_so_far(
    each_usd: float | None, since: Iterable[str], now: datetime, least_s: float = 0.0
) -> float | None:
    """Return the cost of machines of `each_usd` an hour, each since its ISO 8601 time, by list price.

    `least_s`: shortest time that each is billed for. `None`: not known.
    """
    began = [read_time(begin) for begin in since]
    if each_usd is None or None in began:
        return None
    ages_s = (max((now - begin).total_seconds(), least_s) for begin in began if begin is not None)
    return each_usd * sum(ages_s) / 3600


def ttl_text(seconds: float) -> str:
    """Return `8h`, `90m`, `1d2h30m`: a value of --ttl."""
    minutes = seconds / 60
    return f"{minutes:.0f}m" if minutes < 120 and minutes % 60 else _duration(seconds)


def _duration(seconds: float) -> str:
    """Return `1d2h30m`, a value of --ttl, rounded down to minutes. Empty: less than a minute."""
    rest = int(seconds)
    parts = []
    for unit, unit_s in _UNITS_S:
        number, rest = divmod(rest, unit_s)
        parts += [f"{number}{unit}"] * bool(number)
    return "".join(parts)


def _amount(usd: float) -> str:
    """Return `4`, `12.50`, `0.0042`: a value of --max-cost."""
    if usd == int(usd):
        return f"{usd:.0f}"
    return f"{usd:.2f}" if usd >= 0.1 else f"{usd:.2g}"
