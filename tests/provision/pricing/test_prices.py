"""Test prices: built-in ones, downloaded ones, and the vendors' lists on real web servers."""

import json
import tracemalloc
from datetime import UTC, datetime

import pytest
from price_pages import (
    AWS_FILES,
    AWS_MACHINE,
    AWS_PATH,
    OCI_PATH,
    aws_file,
    aws_index,
    aws_line,
    environment,
    oci_page,
    oci_product,
    served,
)

from inventories.errors import CorruptFile, NewerFormat
from provision.aws import price_list as aws_list
from provision.oci import price_list as oci_list
from provision.pricing import price_list
from provision.pricing.catalog import SHAPES
from provision.pricing.price_list import NotUsable
from provision.pricing.prices import FILE_NAME, Price, load, price_of, refresh

NOW = datetime(2026, 11, 21, 6, tzinfo=UTC)
A10 = oci_product("B95909", 2.5)
OCI = oci_page(A10, oci_product("B98415", 11, "Oracle Cloud Infrastructure - Compute - GPU - H100"))
G5 = {"Instance Type": "g5.xlarge", "PricePerUnit": "1.1000000000"}
EU_FILE = aws_file(G5 | {"Region Code": "eu-west-1", "PricePerUnit": "1.2340000000"})
PAGES = {
    OCI_PATH: OCI,
    AWS_PATH: aws_index("us-east-1", "eu-west-1", "eu-west-2"),
    f"{AWS_FILES}us-east-1/index.csv": aws_file(G5, {"Instance Type": "g5.2xlarge"}),
    f"{AWS_FILES}eu-west-1/index.csv": EU_FILE,
}


@pytest.fixture
def pages(monkeypatch):
    """The pages of a server that the environment points to; a test changes them."""
    pages = dict(PAGES)
    with served(pages) as address:
        for name, value in environment(address).items():
            monkeypatch.setenv(name, value)
        pages["address"] = address
        yield pages


def ask(home, *providers, region=None):
    output = []
    done = refresh(home, providers or ("oci", "aws"), region, NOW, output.append)
    return done, output


def usd(home, shape, region=None):
    price = price_of(home, shape, region)
    return None if price is None else price.usd_per_hour


def test_price_of_returns_shipped_prices_without_a_file(tmp_path):
    shipped = Price(usd_per_hour=4.0, date="2026-07", source="shipped with gpuctl")
    assert price_of(tmp_path, "VM.GPU.A10.2", None) == shipped
    assert price_of(tmp_path, "VM.GPU.A10.2", "eu-frankfurt-1") == shipped
    assert usd(tmp_path, "g5.xlarge") == usd(tmp_path, "g5.xlarge", "us-east-1") == 1.006
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("shape", "region"),
    [
        ("g5.xlarge", "eu-west-1"),
        ("g5.2xlarge", None),
        ("BM.GPU.MI300X.8", None),
        ("local", None),
        ("x", None),
    ],
)
def test_price_of_is_none_for_an_unpriced_shape_or_region(tmp_path, shape, region):
    assert price_of(tmp_path, shape, region) is None


def test_refresh_replaces_found_prices_and_keeps_the_others(tmp_path, pages):
    home = tmp_path / "home"
    done, output = ask(home)
    assert done.failed == ()
    assert output == ["asking OCI for its prices …", "asking AWS for its prices in us-east-1 …"]
    assert price_of(home, "VM.GPU.A10.2", "uk-london-1") == Price(
        usd_per_hour=5.0, date="2026-11-21", source=f"{pages['address']}{OCI_PATH}?currencyCode=USD"
    )
    assert usd(home, "BM.GPU.H100.8") == 88.0
    assert price_of(home, "BM.GPU.B200.8", None).date == "2026-07"
    assert price_of(home, "g5.xlarge", None) == Price(
        usd_per_hour=1.1, date="2026-11-21", source=f"{pages['address']}{AWS_FILES}us-east-1/index.csv"
    )
    assert usd(home, "p5.48xlarge") == 55.04
    # AWS's list has more than the catalog.
    assert usd(home, "g5.2xlarge") == 1.006
    assert (home / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == 0o700


def test_refresh_keeps_prices_of_other_regions(tmp_path, pages):
    ask(tmp_path)
    ask(tmp_path, "aws", region="eu-west-1")
    assert usd(tmp_path, "g5.xlarge", "eu-west-1") == 1.234
    assert usd(tmp_path, "g5.xlarge", "us-east-1") == 1.1
    assert usd(tmp_path, "g6.xlarge", "eu-west-1") is None
    pages[OCI_PATH] = oci_page(oci_product("B95909", 1))
    ask(tmp_path, "oci")
    assert (usd(tmp_path, "VM.GPU.A10.1"), usd(tmp_path, "g5.xlarge", "eu-west-1")) == (1.0, 1.234)
    document = json.loads((tmp_path / FILE_NAME).read_text())
    assert [(item["provider"], item["region"]) for item in document["lists"]] == [
        ("aws", "us-east-1"),
        ("aws", "eu-west-1"),
        ("oci", None),
    ]


def test_refresh_continues_when_one_cloud_fails(tmp_path, pages):
    pages[OCI_PATH] = 503
    done, _ = ask(tmp_path)
    assert [answer.provider for answer in done.got] == ["aws"]
    assert done.failed == (
        f"OCI's price list could not be read from {pages['address']}{OCI_PATH}?currencyCode=USD: "
        "the server answers 503 Service Unavailable.",
    )
    assert (usd(tmp_path, "g5.xlarge"), usd(tmp_path, "VM.GPU.A10.1")) == (1.1, 2.0)


def test_refresh_without_network_writes_nothing(tmp_path, monkeypatch):
    for name, value in environment("http://127.0.0.1:1").items():
        monkeypatch.setenv(name, value)
    done, _ = ask(tmp_path / "home")
    assert done.got == ()
    assert [message.rpartition(": ")[2] for message in done.failed] == ["Connection refused."] * 2
    assert not (tmp_path / "home").exists()


def test_interrupted_refresh_keeps_prices_already_fetched(tmp_path, pages):
    def interrupted(line):
        if "AWS" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        refresh(tmp_path, ("oci", "aws"), None, NOW, interrupted)
    assert usd(tmp_path, "VM.GPU.A10.1") == 2.5


@pytest.mark.parametrize("text", ["", '{"format": 1, "lists": [', "[]", '{"format": 1, "lists": [{}]}'])
def test_corrupt_prices_file_is_refused_and_rebuilt_by_refresh(tmp_path, pages, text):
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(CorruptFile, match="gpuctl shapes --refresh-prices"):
        price_of(tmp_path, "g5.xlarge", None)
    pages[OCI_PATH] = pages[AWS_PATH] = 500
    with pytest.raises(CorruptFile, match=r"the server answers 500 .*can't be used"):
        ask(tmp_path)
    assert (tmp_path / FILE_NAME).read_text() == text
    pages |= {OCI_PATH: OCI}
    ask(tmp_path, "oci")
    assert usd(tmp_path, "VM.GPU.A10.1") == 2.5


@pytest.mark.parametrize("price", ["-1", "0", "null"])
def test_price_of_refuses_a_file_with_an_invalid_price(tmp_path, pages, price):
    ask(tmp_path, "oci")
    path = tmp_path / FILE_NAME
    path.write_text(path.read_text().replace('"VM.GPU.A10.1": 2.5', f'"VM.GPU.A10.1": {price}'))
    with pytest.raises(CorruptFile, match=r"VM\.GPU\.A10\.1 can't cost"):
        price_of(tmp_path, "g5.xlarge", None)


def test_prices_file_of_a_newer_format_is_refused_unchanged(tmp_path, pages):
    path = tmp_path / FILE_NAME
    path.write_text('{"format": 99}')
    for read in (lambda: price_of(tmp_path, "g5.xlarge", None), lambda: ask(tmp_path)):
        with pytest.raises(NewerFormat):
            read()
    assert path.read_text() == '{"format": 99}'


def test_refresh_names_an_unknown_aws_region_and_the_nearest(tmp_path, pages):
    done, _ = ask(tmp_path, "aws", region="eu-wset-1")
    assert done.failed == ("AWS's price list has no region 'eu-wset-1'; did you mean 'eu-west-1'?",)
    done, _ = ask(tmp_path, "aws", region="moon")
    assert done.failed == ("AWS's price list has no region 'moon'.",)


def ends_early(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(EU_FILE) + 1))
    handler.end_headers()
    handler.wfile.write(EU_FILE)


def ends_early_in_chunks(handler):
    handler.protocol_version = "HTTP/1.1"
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"%x\r\n%s\r\n" % (len(EU_FILE), EU_FILE))
    handler.close_connection = True


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (404, "the server answers 404 Not Found"),
        (b"", "it has no header"),
        (b"<html>\n" * 50, "it has no header"),
        (b"x" * 100_000, "it has no lines"),
        (aws_file(), "it has no price of a Linux machine on demand in eu-west-1"),
        (aws_file(G5), "it has no price of a Linux machine on demand in eu-west-1"),
        (EU_FILE.replace(b'"Tenancy"', b'"Tenant"'), "it lacks the column Tenancy"),
        (ends_early, f"the connection ended after {len(EU_FILE)} of {len(EU_FILE) + 1} bytes"),
        (ends_early_in_chunks, "IncompleteRead"),
    ],
)
def test_refresh_refuses_an_incomplete_or_unknown_aws_file(tmp_path, pages, page, why):
    pages[f"{AWS_FILES}eu-west-1/index.csv"] = page
    done, _ = ask(tmp_path, "aws", region="eu-west-1")
    (message,) = done.failed
    assert message.startswith("AWS's price list ")
    assert f"{AWS_FILES}eu-west-1/index.csv" in message
    assert why in message
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (b"<html>", "it is no JSON"),
        (b'"items"', "it has no list of products"),
        (b'{"items": {}}', "it has no list of products"),
        (oci_page(), "it has no price of any GPU"),
        (oci_page("x", None, {"metricName": "GPU Per Hour"}), "it has no price of any GPU"),
    ],
)
def test_refresh_refuses_an_unknown_oci_document(tmp_path, pages, page, why):
    pages[OCI_PATH] = page
    (message,) = ask(tmp_path, "oci")[0].failed
    assert why in message


@pytest.mark.parametrize("page", [b"[]", b'{"regions": []}', b'{"regions": {"eu-west-1": {}}}'])
def test_refresh_refuses_an_unknown_aws_index(tmp_path, pages, page):
    pages[AWS_PATH] = page
    (message,) = ask(tmp_path, "aws", region="eu-west-1")[0].failed
    assert "has no region" in message


def test_refresh_times_out_on_a_silent_server(tmp_path, pages, monkeypatch):
    monkeypatch.setattr(price_list, "SILENCE_S", 0.1)

    def silent(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "10")
        handler.end_headers()
        handler.wfile.flush()
        handler.rfile.read(1)  # until the client goes away

    pages[OCI_PATH] = silent
    (message,) = ask(tmp_path, "oci")[0].failed
    assert message.endswith("the server said nothing for 0 seconds.")


def test_refresh_limits_size_time_and_url_scheme(tmp_path, pages, monkeypatch):
    monkeypatch.setattr(price_list, "LARGEST_DOCUMENT", 100)
    assert "it is larger than 0 MB" in ask(tmp_path, "oci")[0].failed[0]
    monkeypatch.undo()
    monkeypatch.setattr(price_list, "DEADLINE_S", -1)
    monkeypatch.setenv(oci_list.URL_VARIABLE, f"{pages['address']}{OCI_PATH}")
    assert "it takes longer than" in ask(tmp_path, "oci")[0].failed[0]
    monkeypatch.setenv(oci_list.URL_VARIABLE, "file:///etc/hostname")
    assert "that is no web address" in ask(tmp_path, "oci")[0].failed[0]


def test_refresh_reads_the_aws_file_in_bounded_memory(tmp_path, pages, monkeypatch):
    monkeypatch.setattr(price_list, "PROGRESS_BYTES", 10 * price_list.MEGABYTE)
    head, line = aws_file(), (aws_line(AWS_MACHINE | {"TermType": "Reserved"}) + "\n").encode()
    block = line * (price_list.PIECE // len(line))
    last = (aws_line(AWS_MACHINE | {"Region Code": "eu-west-1"}) + "\n").encode()

    def long(handler):
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(head)
        for _ in range(32):
            handler.wfile.write(block)
        handler.wfile.write(last)

    pages[f"{AWS_FILES}eu-west-1/index.csv"] = long
    tracemalloc.start()
    try:
        done, output = ask(tmp_path, "aws", region="eu-west-1")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert done.failed == ()
    assert usd(tmp_path, "g5.xlarge", "eu-west-1") == 1.006
    assert [line[2:] for line in output[1:]] == [" MB of AWS's price list read …"] * 3
    assert peak < 12 << 20


@pytest.mark.parametrize(
    "different",
    [
        {"TermType": "Reserved"},
        {"Unit": "Quantity"},
        {"Currency": "CNY"},
        {"Location Type": "AWS Local Zone"},
        {"Tenancy": "Dedicated"},
        {"Operating System": "Windows"},
        {"Operating System": "RHEL"},
        {"Pre Installed S/W": "SQL Web"},
        {"CapacityStatus": "UnusedCapacityReservation"},
        {"MarketOption": "CapacityBlock"},
        {"Region Code": "us-east-2"},
        {"PricePerUnit": "0.0000000000"},
        {"PricePerUnit": "on request"},
        {"PricePerUnit": "nan"},
        {"PricePerUnit": "inf"},
    ],
)
def test_aws_prices_counts_only_linux_on_demand_lines(different):
    lines = aws_file(AWS_MACHINE | different, {"Instance Type": "g6.xlarge"}).splitlines()
    assert aws_list.prices(lines, "us-east-1") == {"g6.xlarge": 1.006}


def test_aws_prices_leaves_out_a_type_with_two_prices():
    same, other = {}, {"PricePerUnit": "2"}
    assert aws_list.prices(aws_file(same, same).splitlines(), "us-east-1") == {"g5.xlarge": 1.006}
    with pytest.raises(NotUsable, match="it has no price"):
        aws_list.prices(aws_file(same, other, same).splitlines(), "us-east-1")


GP3 = {
    "Product Family": "Storage", "Volume API Name": "gp3", "Unit": "GB-Mo", "PricePerUnit": "0.0880000000",
    "Instance Type": "", "Tenancy": "", "Operating System": "", "usageType": "EU-EBS:VolumeUsage.gp3",
    "Region Code": "eu-west-1",
}  # fmt: skip


def test_refresh_reads_the_gp3_disk_price_of_the_region(tmp_path, pages):
    assert load(tmp_path).disk_usd_per_gb_month("aws", "eu-west-1") is None
    rest = [GP3 | {"Region Code": "us-east-2"}, GP3 | {"Product Family": "Provisioned"}]
    ireland = G5 | {"Region Code": "eu-west-1", "PricePerUnit": "1.2340000000"}
    pages[f"{AWS_FILES}eu-west-1/index.csv"] = aws_file(ireland, GP3, GP3, *rest)
    ask(tmp_path, "aws", region="eu-west-1")
    assert load(tmp_path).disk_usd_per_gb_month("aws", "eu-west-1") == 0.088
    assert load(tmp_path).disk_usd_per_gb_month("aws", None) is None, "another region's"
    pages[f"{AWS_FILES}eu-west-1/index.csv"] = aws_file(ireland, GP3, GP3 | {"PricePerUnit": "0.1"})
    ask(tmp_path, "aws", region="eu-west-1")
    assert load(tmp_path).disk_usd_per_gb_month("aws", "eu-west-1") is None, "two prices are none"


def test_aws_prices_ignores_a_truncated_line():
    lines = [*aws_file({}).splitlines(), aws_file({"Instance Type": "g6.xlarge"}).splitlines()[-1][:-200]]
    assert aws_list.prices(lines, "us-east-1") == {"g5.xlarge": 1.006}


def test_aws_regions_maps_each_region_to_its_file():
    assert aws_list.regions_of(json.loads(aws_index("eu-west-1"))) == {
        "eu-west-1": f"{AWS_FILES}eu-west-1/index.csv"
    }


@pytest.mark.parametrize(
    "different",
    [
        {"metricName": "OCPU Per Hour"},
        {"metricName": "Node Per Hour"},
        {"partNumber": "B111826"},
        {"currencyCodeLocalizations": []},
        {"currencyCodeLocalizations": None},
        {"currencyCodeLocalizations": [{"currencyCode": "USD", "prices": [None]}]},
        {
            "currencyCodeLocalizations": [
                {"currencyCode": "EUR", "prices": [{"model": "PAY_AS_YOU_GO", "value": 2}]}
            ]
        },
        {
            "currencyCodeLocalizations": [
                {"currencyCode": "USD", "prices": [{"model": "ANNUAL_COMMIT", "value": 2}]}
            ]
        },
        {
            "currencyCodeLocalizations": [
                {
                    "currencyCode": "USD",
                    "prices": [
                        {"model": "PAY_AS_YOU_GO", "value": 2},
                        {"model": "PAY_AS_YOU_GO", "value": 3},
                    ],
                }
            ]
        },
    ],
)
def test_oci_prices_counts_only_pay_as_you_go_gpu_hours_in_usd(different):
    document = json.loads(oci_page(A10 | different, oci_product("B109479", 3.5, "Compute - GPU - L40S")))
    assert oci_list.prices(document) == {"BM.GPU.L40S.4": 14.0}


def test_oci_prices_covers_every_oci_shape_of_the_catalog():
    a_gpu = {part: SHAPES[name].usd_per_hour / SHAPES[name].gpus for name, part in oci_list.PARTS.items()}
    document = json.loads(oci_page(*(oci_product(part, usd) for part, usd in a_gpu.items())))
    assert oci_list.prices(document) == {
        name: shape.usd_per_hour for name, shape in SHAPES.items() if shape.provider == "oci"
    }


def test_price_lists_use_the_vendors_https_addresses():
    assert oci_list.URL.startswith(f"https://apexapps.oracle.com{OCI_PATH}")
    assert aws_list.URL.endswith(f"://pricing.us-east-1.amazonaws.com{AWS_PATH}")
