"""`gpuctl clusters` of rented machines: what they cost, what ends them, and an account that does not answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds import COUNT, KINDS, CloudGpuctl, Clouds, Kind

pytestmark = pytest.mark.slow

EXPIRED = {
    "oci": {"status": 401, "code": "NotAuthenticated"},
    "aws": {"status": 400, "code": "RequestExpired"},
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def gpuctl(request: pytest.FixtureRequest, clouds: Clouds, tmp_path: Path) -> Iterator[CloudGpuctl]:
    kind: Kind = request.param
    command = clouds.as_new(kind, tmp_path)
    yield command
    command.cloud.clear_faults()
    for cluster in sorted((command.home / "clusters").glob("*")):
        command.ok("down", "--yes", "--cluster", cluster.name)
    assert command.cloud.owned() == []


def test_clusters_lists_cost_and_end_time_of_rented_machines(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok(*gpuctl.up_words)
    gpuctl.ok(*gpuctl.up_words, "--cluster", "timed", "--ttl", "4h")
    gpuctl.ok("up", "--provider", "local", "--count", "1", "--cluster", "mine")
    clusters = gpuctl.ok("clusters", "--json").json["clusters"]
    assert [cluster["cluster"] for cluster in clusters] == ["default", "timed", "mine"]
    for cluster in clusters[:2]:
        assert (cluster["provider"], cluster["state"], cluster["billed"]) == (
            gpuctl.kind.provider,
            "running",
            True,
        )
        assert (len(cluster["machines"]), cluster["shape"]) == (COUNT, gpuctl.kind.shape)
        assert cluster["hourly_usd"] > 0
        assert cluster["cost_usd"] > 0
        assert cluster["age_s"] >= 0
    assert [bool(cluster["expires_at"]) for cluster in clusters] == [False, True, False]
    assert (clusters[2]["hourly_usd"], clusters[2]["billed"]) == (0.0, False)
    shown = gpuctl.ok("clusters").out
    assert "default: nothing ends it: it is billed until gpuctl down --cluster default" in shown
    assert "timed: nothing ends it" not in shown
    assert "in 3 h 59 min" in shown or "in 4 h 0 min" in shown
    assert "3 clusters, 5 machines, $" in shown

    gpuctl.cloud.fault(
        operation="*", nth=1, times=0, kind="error", message="Expired.", **EXPIRED[gpuctl.kind.provider]
    )
    silent = gpuctl("clusters", "--json")
    assert silent.status == 4, silent.err
    by_name = {cluster["cluster"]: cluster for cluster in silent.json["clusters"]}
    assert {name: cluster["state"] for name, cluster in by_name.items()} == {
        "default": "unknown",
        "timed": "unknown",
        "mine": "running",
    }
    assert by_name["default"]["problem"]
    assert "note: default: " in silent.err
    assert by_name["default"]["hourly_usd"] > 0, "what it costs is in the files here"
