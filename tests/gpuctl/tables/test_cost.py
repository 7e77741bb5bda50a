"""The table of `gpuctl cost`."""

from dataclasses import replace

from rich.console import Console

from gpuctl.command_results.clusters import ClusterCost, CostResult, DayCost, RunCost
from gpuctl.tables.cost import cost_table

RUN = RunCost(run="20261120-063000-ab12", cluster="default", usd=8.0)
ENDED = ClusterCost(
    cluster="default",
    id="0a1b",
    provider="oci",
    region="eu-frankfurt-1",
    usd=24.06,
    from_="2026-11-20T06:30:00+00:00",
    to="2026-11-20T09:30:00+00:00",
    unknown=None,
    runs=(RUN,),
)
SPOT = replace(
    ENDED, cluster="spot", provider="aws", usd=None, to=None, unknown="Its price is a gap.", runs=()
)
RESULT = CostResult(
    since="2026-11-01T00:00:00+00:00",
    clusters=(ENDED,),
    days=(DayCost(day="2026-11-20", usd=24.06),),
    usd=24.06,
    complete=True,
    unknown=(),
)


def shown(result: CostResult) -> str:
    console = Console(width=110)
    with console.capture() as captured:
        console.print(cost_table(result))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def test_cost_table_has_clusters_runs_and_days() -> None:
    assert (
        shown(RESULT)
        == """\
cluster  where               from              to                runs  in runs    cost
default  oci eu-frankfurt-1  2026-11-20 06:30  2026-11-20 09:30     1    $8.00  $24.06

run                   cluster   cost
20261120-063000-ab12  default  $8.00

day           cost
2026-11-20  $24.06

$24.06 since 2026-11-01, 1 cluster
list prices, without taxes, traffic and discounts; times are UTC"""
    )


def test_cost_table_says_what_is_a_gap() -> None:
    gap = shown(replace(RESULT, clusters=(ENDED, SPOT), complete=False))
    assert "at least $24.06 since 2026-11-01, 2 clusters\nspot: Its price is a gap." in gap
    assert "- since 2026-11-01" in shown(replace(RESULT, clusters=(SPOT,), usd=None, complete=False))
    bounded = shown(replace(RESULT, clusters=(replace(ENDED, unknown="It ended earlier."),)))
    assert "about $24.06 since" in bounded
    assert shown(replace(RESULT, clusters=())) == "nothing was billed since 2026-11-01, as far as is known"
    many = replace(ENDED, runs=(RUN,) * 23)
    assert "and 3 earlier runs: --json has all" in shown(replace(RESULT, clusters=(many,)))
