"""Test `gpuctl shapes`: the listed shapes, their order, and today's prices from real web servers."""

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from price_pages import (
    AWS_FILES,
    AWS_PATH,
    OCI_PATH,
    Page,
    aws_file,
    aws_index,
    environment,
    oci_page,
    oci_product,
    served,
)

from gpuctl.command_line import cli
from gpuctl.commands import shapes as command
from gpuctl.global_options import Options
from gpuctl.output import Output
from gpuctl.tables.lists import shapes_table
from provision.pricing.catalog import SHAPES

Shapes = Callable[..., tuple[int, str, str]]
NOT_WHOLE = f"{command.NOT_WHOLE}\n"
PAGES: dict[str, Page] = {
    OCI_PATH: oci_page(oci_product("B95909", 2.5)),
    AWS_PATH: aws_index("us-east-1", "eu-west-1"),
    f"{AWS_FILES}us-east-1/index.csv": aws_file({"PricePerUnit": "1.1000000000"}),
    f"{AWS_FILES}eu-west-1/index.csv": aws_file({"Region Code": "eu-west-1", "PricePerUnit": "1.2"}),
}


@pytest.fixture(autouse=True)
def no_vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a fresh home and 80 columns, with no vendor reachable for prices."""
    monkeypatch.setenv("GPUCTL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    for name, value in environment("http://127.0.0.1:1").items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def shapes(capsys: pytest.CaptureFixture[str]) -> Shapes:
    """`gpuctl shapes`, in this process: status, stdout, stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        status = cli.main(["shapes", *words])
        return status, *capsys.readouterr()

    return run


def names(out: str) -> list[str]:
    return [row["name"] for row in json.loads(out)["shapes"]]


def listed(shapes: Shapes, *words: str) -> list[str]:
    status, out, _ = shapes("--json", *words)
    assert status == 0
    return names(out)


def test_shapes_prints_table_with_price_source(shapes: Shapes) -> None:
    assert shapes("--gpu", "v100", "--min-gpus", "8") == (
        0,
        """\
shape        provider  GPUs      GB    Gbps  RDMA/EFA     $/h  $/GPU-h
BM.GPU3.8    oci       8 x V100  16  2 x 25         -  23.600    2.950
p3.16xlarge  aws       8 x V100  16      25         -  24.480    3.060

list prices on demand of 2026-07: OCI, AWS us-east-1 (shipped with gpuctl)
""",
        NOT_WHOLE,
    )


def test_shapes_names_what_the_table_lacks_and_what_is_not_launched(shapes: Shapes) -> None:
    status, _, err = shapes()
    assert status == 0
    unpriced, not_launched, not_whole = err.splitlines(keepends=True)
    assert unpriced.startswith(
        "AWS's prices of g7e.2xlarge, g7e.12xlarge, g7e.24xlarge, g7e.48xlarge in us-east-1 "
    )
    assert not_launched.startswith(
        "BM.GPU.GB200.4, BM.GPU.GB300.4: not by gpuctl, as OCI starts it only in GPU memory"
    )
    assert not_whole == NOT_WHOLE
    out = shapes("BM.GPU.GB300.4")[1]
    assert "launch    not by gpuctl, as OCI starts it only in GPU memory" in out
    assert "gpuctl up" not in out
    (shape,) = json.loads(shapes("BM.GPU.GB300.4", "--json")[1])["shapes"]
    assert shape["not_launched"].startswith("OCI starts it only in GPU memory clusters")


def test_shapes_says_of_an_unknown_network_that_it_is_unknown(shapes: Shapes) -> None:
    assert "network       not known\n" in shapes("BM.GPU.RTXPRO.8")[1]
    assert "8 x RTXPRO  96     -" in shapes("--gpu", "RTXPRO")[1]
    (shape,) = json.loads(shapes("BM.GPU.RTXPRO.8", "--json")[1])["shapes"]
    assert (shape["network"], shape["network_gbps"]) == (None, None)


def test_shapes_table_of_all_shapes_fits_80_columns(shapes: Shapes) -> None:
    status, out, _ = shapes()
    assert status == 0
    lines = out.splitlines()
    assert len(lines) == len(SHAPES) + 5  # with the head, and below a line for each date of prices
    assert max(map(len, lines)) <= 80
    assert "…" not in out
    for name in SHAPES:
        assert sum(line.split()[:1] == [name] for line in lines) == 1
    assert "BM.GPU.A100-v2.8  oci       8 x A100     80   2 x 50  16 x 100   32.000    4.000\n" in out
    assert "p5.48xlarge       aws       8 x H100     80     3200    32 EFA   55.040    6.880\n" in out


def test_shapes_json_describes_shape_and_prices(shapes: Shapes) -> None:
    status, out, err = shapes("BM.GPU.A10.4", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "shapes": [
            {
                "name": "BM.GPU.A10.4",
                "provider": "oci",
                "gpus": 4,
                "gpu": "A10",
                "gpu_memory_gb": 24,
                "network": "2 x 50",
                "network_gbps": 100.0,
                "rdma": None,
                "rdma_gbps": 0.0,
                "efa": 0,
                "placement_group": False,
                "bare_metal": True,
                "compute_cluster": False,
                "not_launched": None,
                "usd_per_hour": 8.0,
                "usd_per_gpu_hour": 2.0,
                "priced_at": "2026-07",
                "price_region": None,
                "price_source": "shipped with gpuctl",
            }
        ],
        "prices": {"date": "2026-07", "source": "shipped with gpuctl"},
    }


def test_shapes_filters_by_gpu_provider_count_and_price(shapes: Shapes) -> None:
    assert set(listed(shapes)) == set(SHAPES)
    assert listed(shapes, "--gpu", "l40s") == ["g6e.xlarge", "g6e.12xlarge", "BM.GPU.L40S.4", "g6e.48xlarge"]
    assert listed(shapes, "--gpu", "H100", "--provider", "aws") == ["p5.4xlarge", "p5.48xlarge"]
    assert listed(shapes, "--min-gpus", "8", "--max-price", "16.288") == [
        "g4dn.metal",
        "g6.48xlarge",
        "g5.48xlarge",
    ]
    assert listed(shapes, "--gpu", "T4", "--provider", "oci") == []
    status, out, err = shapes("--gpu", "T4", "--provider", "oci")
    assert (status, out, err) == (0, "", "No shape that gpuctl knows is like that.\n")


A10S = ["g5.xlarge", "VM.GPU.A10.1", "VM.GPU.A10.2", "g5.12xlarge", "BM.GPU.A10.4", "g5.48xlarge"]


def test_shapes_gpu_search_includes_variants_with_note(shapes: Shapes) -> None:
    other = "A10G is another GPU than A10, AWS's; its shapes are listed, too.\n"
    for words in (("--gpu", "A10"), ("--gpu", "a10"), ("A10",), ("a10", "VM.GPU.A10.2")):
        status, out, err = shapes(*words, "--json")
        assert (status, err, names(out)) == (0, other, A10S), words
    assert listed(shapes, "--gpu", "A10", "--provider", "oci") == [n for n in A10S if "A10" in n]
    assert listed(shapes, "--gpu", "A10G") == [n for n in A10S if n.startswith("g5")]
    assert "A100" not in shapes("--gpu", "A10")[1]


def test_shapes_filters_by_exact_gpu_count(shapes: Shapes) -> None:
    for option in ("--gpus", "--count"):
        assert listed(shapes, "A10", option, "4") == ["g5.12xlarge", "BM.GPU.A10.4"]
    assert {SHAPES[name].gpus for name in listed(shapes, "--gpus", "2")} == {2}
    status, out, err = shapes("--gpu", "T4", "--gpus", "3")
    assert (status, out, err) == (0, "", "None of these shapes has 3 GPUs a machine: they have 1, 4 or 8.\n")


def test_shapes_finds_shapes_by_part_of_name(shapes: Shapes) -> None:
    assert listed(shapes, "vm.gpu.a10.2") == ["VM.GPU.A10.2"]
    assert listed(shapes, "VM.GPU.A10") == ["VM.GPU.A10.1", "VM.GPU.A10.2"]
    assert listed(shapes, "g5", "VM.GPU3.1") == ["g5.xlarge", "VM.GPU3.1", "g5.12xlarge", "g5.48xlarge"]
    assert listed(shapes, "48xlarge", "--gpu", "L4") == ["g6.48xlarge"]


def test_shapes_shows_single_shape_in_detail(shapes: Shapes) -> None:
    assert shapes("BM.GPU.H100.8") == (
        0,
        """\
shape         BM.GPU.H100.8
provider      oci, bare metal
GPUs          8 x H100, 80 GB each (640 GB together)
network       100 Gbps
RDMA          16 x 200 Gbps, in a compute cluster
price         $80.000 an hour, $10.000 a GPU: list price on demand of 2026-07
              (shipped with gpuctl)
see the plan  gpuctl up --shape BM.GPU.H100.8 --count 2 --dry-run
""",
        "",
    )
    assert "EFA           1 interface, which" in shapes("p5.4xlarge")[1]
    assert "price         not known\n" in shapes("g5.xlarge", "--region", "eu-west-1")[1]


def test_shapes_suggests_nearest_names_for_unknown_shape(shapes: Shapes) -> None:
    status, out, err = shapes("VM.GPU.A10.3")
    assert (status, out) == (2, "")
    assert err == (
        "error: gpuctl knows no shape 'VM.GPU.A10.3'. The nearest are VM.GPU.A10.1, VM.GPU.A10.2, BM.GPU.A10.4. "
        "OCI may have it all the same: gpuctl up --shape VM.GPU.A10.3 --dry-run\n"
    )
    assert shapes("a-10g")[2].startswith("error: No shape and no GPU is called 'a-10g'. The nearest are A10G")


def test_shapes_unknown_gpu_shows_similar_or_exits_2(shapes: Shapes) -> None:
    status, out, err = shapes("--gpu", "A1")
    assert status == 0
    assert err == f"No GPU is called A1; shown are A10, A100, A10G.\n{NOT_WHOLE}"
    assert "VM.GPU.A10.1" in out
    for typed, hint in (
        ("B10", "; did you mean 'A10'?"),
        ("RTX4090", "."),
        ("", "."),
        ("a10-g", "; did you mean 'A10G'?"),
    ):
        status, out, err = shapes("--gpu", typed)
        assert (status, out) == (2, "")
        assert f"No shape has a GPU called {typed!r}{hint} Known are A10, A100, A10G, B200," in err


def test_shapes_sorts_by_price_price_per_gpu_or_name(shapes: Shapes) -> None:
    by_price = listed(shapes, "--sort", "price")
    assert by_price == listed(shapes)
    usd = [SHAPES[name].usd_per_hour for name in by_price]
    assert usd == sorted(usd, key=lambda item: item or math.inf)
    a_gpu = [
        (SHAPES[name].usd_per_hour or math.inf) / SHAPES[name].gpus
        for name in listed(shapes, "--sort", "price-per-gpu")
    ]
    assert a_gpu == sorted(a_gpu)
    assert listed(shapes, "--sort", "name") == sorted(SHAPES, key=str.casefold)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--provider", "local"], "--provider"),
        (["--sort", "gpus"], "--sort"),
        (["--min-gpus", "0"], "--min-gpus"),
        (["--max-price", "-1"], "--max-price"),
        (["--max-price", "nan"], "--max-price"),
        (["--max-price", "cheap"], "--max-price"),
        (["--gpus", "0"], "--gpus"),
        (["RTX4090"], "RTX4090"),
        ([""], "can't be empty"),
        (["VM.GPU.A10.2", "nobody"], "nobody"),
    ],
)
def test_shapes_wrong_usage_exits_2(shapes: Shapes, words: list[str], named: str) -> None:
    status, out, err = shapes(*words)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert named in err


def test_shapes_reports_unknown_prices_of_region(shapes: Shapes) -> None:
    status, out, err = shapes("--gpu", "L4", "--region", "eu-west-1")
    assert status == 0
    assert "g6.xlarge    aws       1 x L4  24   2.5         -    -        -\n" in out
    assert "list prices" not in out
    assert err == (
        "AWS's prices in eu-west-1 are not known here. "
        "Ask for them: gpuctl shapes --refresh-prices --provider aws --region eu-west-1\n" + NOT_WHOLE
    )
    status, out, err = shapes("--max-price", "3", "--region", "eu-west-1", "--json")
    assert names(out) == ["VM.GPU2.1", "VM.GPU.A10.1", "VM.GPU3.1"]
    assert "are not known here. --max-price leaves 26 shapes out. Ask" in err
    by_name = listed(shapes, "--region", "eu-west-1")
    assert [SHAPES[name].provider for name in by_name] == ["oci"] * 18 + ["aws"] * 26


def test_shapes_refresh_prices_fetches_and_keeps_prices(
    shapes: Shapes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(PAGES) as address:
        for name, value in environment(address).items():
            monkeypatch.setenv(name, value)
        status, out, err = shapes("--refresh-prices", "--gpu", "A10G", "--max-price", "2")
        assert status == 0
        assert "g5.xlarge  aws       1 x A10G  24   2.5         -  1.100    1.100\n" in out
        assert f"{address}{AWS_FILES}us-east-1/index.csv" in out.replace("\n", "")
        assert err.splitlines() == [
            "asking OCI for its prices …",
            "asking AWS for its prices in us-east-1 …",
            "OCI: 3 prices",
            "AWS: 1 price in us-east-1",
            NOT_WHOLE.strip(),
        ]
        status, out, err = shapes("--refresh-prices", "--provider", "aws", "--region", "eu-west-1", "--json")
        assert status == 0
        rows = {row["name"]: row for row in json.loads(out)["shapes"]}
        assert rows["g5.xlarge"]["usd_per_hour"] == 1.2
        assert rows["g5.xlarge"]["price_region"] == "eu-west-1"
        assert rows["p5.4xlarge"]["usd_per_hour"] is None
        assert "AWS lists no price in eu-west-1 of g4dn.xlarge," in err
        assert err.startswith("asking AWS")
    # The prices are saved, each with its date; the document has the oldest.
    status, out, _ = shapes("--json")
    document: dict[str, Any] = json.loads(out)
    rows = {row["name"]: row for row in document["shapes"]}
    assert (rows["VM.GPU.A10.2"]["usd_per_hour"], rows["g5.xlarge"]["usd_per_hour"]) == (5.0, 1.1)
    assert rows["VM.GPU.A10.2"]["priced_at"] > rows["p5.48xlarge"]["priced_at"] == "2026-07"
    assert document["prices"]["date"] == "2026-07"
    assert {"shipped with gpuctl", f"{address}{AWS_FILES}us-east-1/index.csv"} < set(
        document["prices"]["source"].split("; ")
    )


def test_shapes_refresh_prices_exits_4_if_one_provider_fails(
    shapes: Shapes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(PAGES | {OCI_PATH: 503}) as address:
        for name, value in environment(address).items():
            monkeypatch.setenv(name, value)
        status, out, err = shapes("--refresh-prices", "--json")
    assert status == 4
    assert {row["name"]: row["usd_per_hour"] for row in json.loads(out)["shapes"]}["g5.xlarge"] == 1.1
    assert err.splitlines()[-1].startswith("error: OCI's price list could not be read from http://")
    assert err.endswith("503 Service Unavailable. The other prices were refreshed.\n")


def test_shapes_refresh_prices_offline_keeps_shipped_prices(shapes: Shapes, tmp_path: Path) -> None:
    status, out, err = shapes("--refresh-prices", "--gpu", "A10", "--provider", "oci")
    assert status == 1
    assert "VM.GPU.A10.1  oci" in out
    assert "list prices on demand of 2026-07: OCI (shipped with gpuctl)\n" in out
    assert err.count("Connection refused") == 1
    assert err.endswith("The prices are the ones that were known before; their date is shown with them.\n")
    assert not (tmp_path / "home").exists()
    status, out, _ = shapes("--refresh-prices", "--json")
    assert status == 1
    assert json.loads(out)["prices"]["date"] == "2026-07"


def test_shapes_refuses_damaged_price_file(shapes: Shapes, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "prices.json").write_text('{"format": 1, "li')
    status, out, err = shapes()
    assert (status, out) == (2, "")
    assert "gpuctl shapes --refresh-prices" in err


def test_shapes_table_drops_columns_to_fit_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    row = {
        "name": "BM.GPU.A100-v2.8",
        "provider": "oci",
        "gpus": 8,
        "gpu": "A100",
        "gpu_memory_gb": 80,
        "network": "2 x 50",
        "rdma": "16 x 100",
        "efa": 0,
        "usd_per_hour": 1234.5,
        "usd_per_gpu_hour": 154.3125,
        "priced_at": "2026-07",
        "price_region": None,
        "price_source": "x",
    }
    out = io.StringIO()
    Output(Options(), stdout=out).table(shapes_table([row]))
    text = out.getvalue()
    assert "…" not in text
    assert text.startswith(
        "shape             GPUs      GB    Gbps  RDMA/EFA        $/h  $/GPU-h\n"
        "BM.GPU.A100-v2.8  8 x A100  80  2 x 50  16 x 100  1,234.500  154.312\n"
        "no room for provider\n"
    )


def test_shapes_takes_gpus_a_machine_after_a_colon(shapes: Shapes) -> None:
    assert listed(shapes, "A10:2") == ["VM.GPU.A10.2"]
    assert "A10G" not in shapes("A10:2")[2]
    assert "A10G is another GPU" in shapes("A10:4")[2]
    status, _, err = shapes("A10:3")
    assert (status, "None of these shapes has 3 GPUs" in err) == (2, True)


def test_shapes_with_region_of_oci_shows_aws_prices_of_default_region(shapes: Shapes) -> None:
    status, out, err = shapes("A10", "--region", "us-ashburn-1")
    assert status == 0
    assert "note: us-ashburn-1 is a region of OCI" in err
    assert "--refresh-prices" not in err
    assert "AWS us-east-1" in out
