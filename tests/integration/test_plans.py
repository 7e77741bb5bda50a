"""Test the plan of `up` against the fake clouds: used and created resources, and the pages in `docs/` that show it.

Run `GPUCTL_WRITE_DOCS=1 pytest tests/integration/test_plans.py -k pages` to rewrite the samples' plans in
`docs/plans.md` and `docs/plans/`.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds import KINDS, CloudGpuctl, Clouds
from terminal import Terminal

import inventories

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
SAMPLES = Path(inventories.__file__).parent / "samples"
PAGES = {"oci": "oci-a10-2x2", "aws": "aws-g5-2x4"}
"""The sample of each cloud."""
STABLE = (
    (r"\b(ocid1\.\w+\.oc1\.[a-z0-9-]*)\.[a-z0-9]+", r"\1.example"),
    (r"\bami-[0-9a-f]{8,}", "ami-0123456789abcdef0"),
    (r'("gpuctl-cluster-id": |"Key": "gpuctl-cluster-id", "Value": )"[0-9a-f]{16}"', r'\1"0123456789abcdef"'),
    (r"\bgpuctl-g5-[0-9a-f]{8}", "gpuctl-g5-01234567"),
    (r'("gpuctl-owner": |"Key": "gpuctl-owner", "Value": )"[^"]*"', r'\1"you@computer"'),
    (r"\bUocm:EU-FRANKFURT-1-AD", "Uocm:US-ASHBURN-AD"),
    (r"\b20\d\d-\d\d-\d\d \d\d:\d\d UTC", "2026-07-01 16:00 UTC"),
    (r"\b0 \d+ \d+ \d+ \d+ \? 20\d\d", "0 0 16 1 7 ? 2026"),
    (r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00", "2026-07-01T16:00:00+00:00"),
)
"""What differs from one account, computer and day to the next."""


@pytest.fixture(params=KINDS)
def gpuctl(request: pytest.FixtureRequest, clouds: Clouds, tmp_path: Path) -> Iterator[CloudGpuctl]:
    """Yield gpuctl with an empty account; gpuctl's resources must be gone at the end."""
    command = clouds.as_new(KINDS[request.param], tmp_path)
    yield command
    for cluster in sorted((command.home / "clusters").glob("*")):
        command.ok("down", "--yes", "--cluster", cluster.name)
    assert command.cloud.owned() == []


def stable(text: str) -> str:
    for pattern, put in STABLE:
        text = re.sub(pattern, put, text)
    return text


def json_page(document: Any) -> str:
    """The document with a line for each request."""
    text = json.dumps(document | {"requests": []}, indent=2)
    lines = ",\n".join(f"    {json.dumps(request)}" for request in document["requests"])
    return stable(text.replace('"requests": []', f'"requests": [\n{lines}\n  ]') + "\n")


def compared(path: Path, text: str) -> None:
    """Compare the text with the page, or rewrite the page if requested."""
    if os.environ.get("GPUCTL_WRITE_DOCS") == "1":
        path.write_text(text)
    assert path.read_text() == text, "GPUCTL_WRITE_DOCS=1 writes it anew"


@pytest.mark.parametrize(
    "gpuctl", [pytest.param("oci", marks=pytest.mark.whole), pytest.param("aws")], indirect=True
)
def test_docs_pages_show_plans_of_the_samples(gpuctl: CloudGpuctl) -> None:
    sample = PAGES[gpuctl.kind.provider]
    # Same as on a terminal, where a yes accepts an image's terms.
    accepts = ("--accept-terms",) * (gpuctl.kind.provider == "oci")
    words = (
        "up",
        "-f",
        str(SAMPLES / f"{sample}.yaml"),
        "--ssh-cidr",
        "203.0.113.7/32",
        "--dry-run",
        *accepts,
    )
    text = stable(gpuctl.ok(*words, env={"COLUMNS": "96"}).out)
    shown = "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines())
    page = (DOCS / "plans.md").read_text()
    begin = f"    $ {' '.join((f'gpuctl up -f inventories/samples/{sample}.yaml', *accepts, '--dry-run'))}\n"
    before, existing, rest = page.partition(begin)
    assert existing, f"plans.md shows {sample}"
    end = rest.index("\n\n", rest.index("list prices")) + 1
    compared(DOCS / "plans.md", f"{before}{begin}{shown}{rest[end:]}")
    document = gpuctl.ok(*words, "--json").json
    compared(DOCS / "plans" / f"{sample}.json", json_page(document))
    hourly_usd = document["hourly_usd"]
    lives_s = document["until_s"]
    assert (f"${hourly_usd * 3:,.2f} for 3 h" in text) == (lives_s >= 3 * 3600)
    assert document["total_usd"] == pytest.approx(hourly_usd * lives_s / 3600, abs=1e-3)
    assert sum(item["hourly_usd"] for item in document["resources"]) == pytest.approx(hourly_usd, abs=1e-5)
    assert gpuctl.cloud.calls(mutating=True) == []


def test_up_dry_run_works_beside_cluster_of_other_provider(gpuctl: CloudGpuctl) -> None:
    gpuctl.ok("up", "--provider", "local")
    done = gpuctl.ok(*gpuctl.up_words, "--dry-run")
    name = f"default-{gpuctl.kind.provider}"
    assert (done.json["cluster"], done.json["provider"]) == (name, gpuctl.kind.provider)
    assert f"--cluster {name}" in done.err
    refused = gpuctl(*gpuctl.up_words)
    assert refused.status != 0
    assert "is of provider local" in refused.err


def test_up_dry_run_shows_requests_only_with_verbose(gpuctl: CloudGpuctl) -> None:
    words = ("up", "--shape", gpuctl.kind.shape, "--dry-run", "--ssh-cidr", "203.0.113.7/32")
    plain = gpuctl.ok(*words).out
    assert "nothing ends these machines" in plain
    assert "CreateSubnet" not in plain
    report = gpuctl.ok(*words, "--verbose").out
    assert report.index("price ") < report.index("CreateSubnet {")
    assert "PRIVATE KEY" not in report


@pytest.mark.parametrize("gpuctl", ["aws"], indirect=True)
def test_up_plan_notes_resources_it_could_not_list(gpuctl: CloudGpuctl) -> None:
    gpuctl.cloud.settings(denied=["DescribeVpcs"])
    try:
        plan = gpuctl.ok(*gpuctl.up_words, "--dry-run").json
    finally:
        gpuctl.cloud.settings(denied=[])
    assert any("could not be looked at, so all is shown as new" in note for note in plan["notes"])


CODE = "import sys; from gpuctl.command_line.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize("gpuctl", ["oci"], indirect=True)
def test_up_shows_plan_before_asking(gpuctl: CloudGpuctl) -> None:
    words = ("up", "--shape", gpuctl.kind.shape, "--count", "2", "--ssh-cidr", "203.0.113.7/32", "--no-wait")
    with Terminal(CODE, *words, **gpuctl.env) as terminal:
        terminal.wait_for("[y/N] ")
        terminal.type("n\n")
        assert terminal.wait() == 1
    calls = " ".join(re.sub("\x1b\\[[0-9;]*m", "", terminal.seen).split())
    plan, _, rest = calls.partition(
        "Create 2 machines ($8.02 an hour, $192.56 a day, and nothing ends them) and accept the terms of NVIDIA "
        "GPU-Optimized VMI 26.04.1? [y/N] "
    )
    assert "nothing ends these machines: a day costs $192.56 (add --ttl 4h)" in plan
    assert "Cancelled: nothing was created." in rest
    assert gpuctl.cloud.calls(mutating=True) == []
