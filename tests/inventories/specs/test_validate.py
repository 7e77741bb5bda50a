from pathlib import Path

import pytest

from inventories.errors import InvalidInput
from inventories.specs.checks import (
    check_bastion,
    check_cidr,
    check_cluster_name,
    check_count,
    check_disk_gb,
    check_max_cost_usd,
    check_port,
    check_python,
    check_ttl_s,
    parse_duration_s,
)
from inventories.specs.setup_steps import SetupStep
from inventories.specs.spec import Spec
from inventories.specs.validate import check_option, read_spec

COUNT = "can't be used: a count of machines is a whole number from 1 to 1000."
NO_TEXT = "can't be used: it should be text; put it in quotes if it is."
NO_STEP = "can't be used: it should be a shell line, in quotes where it has ': ', or fab: TASK ARGS, without quotes."
NO_WORD = "can't be used: it should be one word that does not begin with '-'."
ALLOWED = (
    "Allowed: cluster, provider, shape, count, min, max, region, compartment, profile, context, image, driver, "
    "disk_gb, spot, ssh_cidr, ttl, idle, max_cost_usd, notify, hosts, python, setup, network."
)
NETWORK = "Allowed: subnet_id, public_ip, bastion, ssh_port."
BASTION = (
    "can't be used: it is written as in ubuntu@203.0.113.7, ubuntu@bastion.example:2222 "
    "or ubuntu@[2001:db8::7]:22."
)


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "spec.yaml"
        path.write_text(text)
        return path

    return write


def refusal(check, value) -> str:
    with pytest.raises(InvalidInput) as caught:
        check(value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["a", "7", "default", "a-b", "a--b", "a" * 40])
def test_check_cluster_name_accepts_valid_names(name):
    assert check_cluster_name(name) == name


@pytest.mark.parametrize("name", ["", "a/b", "A", "-a", "a-", "a" * 41, "a\n", "ä", "a.b", 7, None, True])
def test_check_cluster_name_refuses_invalid_names(name):
    assert refusal(check_cluster_name, name).endswith(
        " can't be used: a name is 1 to 40 of a-z, 0-9 and '-', and begins and ends with a letter or digit."
    )
    assert refusal(check_cluster_name, "a/b").startswith("Cluster name 'a/b' can't")


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_check_count_accepts_1_to_1000(count):
    assert check_count(count) == count


@pytest.mark.parametrize(
    ("count", "sentence"),
    [
        (0, f"Count 0 {COUNT} `gpuctl down` removes a cluster."),
        (10**6, f"Count 1000000 {COUNT}"),
        (-1, f"Count -1 {COUNT}"),
        (
            "2",
            "Count '2' can't be used: in quotes it is text. Write it without them, as a whole number from 1 to 1000.",
        ),
        ("two", f"Count 'two' {COUNT}"),
        (2.0, f"Count 2.0 {COUNT}"),
        (False, f"Count false {COUNT}"),
        (None, f"Count null {COUNT}"),
    ],
)
def test_check_count_refuses_other_values(count, sentence):
    assert refusal(check_count, count) == sentence


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("4h", 14400),
        ("1d", 86400),
        ("1h30m", 5400),
        ("0.5h", 1800),
        (" 4h ", 14400),
    ],
)
def test_parse_duration_s_reads_units(text, seconds):
    assert parse_duration_s(text) == seconds


def test_check_ttl_s_refuses_what_ends_before_machines_have_booted():
    assert (
        refusal(check_ttl_s, "1s") == "A --ttl of 1s ends before the machines have booted: give 10m or more."
    )
    assert check_ttl_s("10m") == 600


@pytest.mark.parametrize(
    "text", ["", "4", "h", "4 h", "4w", "-4h", "0s", "0h0m", "4h30", "1e3s", "٤h", 4, None, "9" * 400 + "s"]
)
def test_parse_duration_s_refuses_malformed_durations(text):
    assert refusal(parse_duration_s, text).endswith(
        " can't be used: a duration is a number above 0 with its unit s, m, h or d, as in 90s, 30m, 4h or 1d."
    )


@pytest.mark.parametrize(
    ("text", "cidr"),
    [
        ("203.0.113.7", "203.0.113.7/32"),
        ("10.0.0.0/16", "10.0.0.0/16"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
    ],
)
def test_check_cidr_accepts_addresses_and_ranges(text, cidr):
    assert check_cidr(text) == cidr


@pytest.mark.parametrize("text", ["", "10.0.0.1/16", "10.0.0.0/33", "me", 7, None, "10.0.0/8"])
def test_check_cidr_refuses_invalid_ranges(text):
    sentence = refusal(check_cidr, text)
    assert sentence.startswith("Address range ")
    assert sentence.endswith("a range is written as in 203.0.113.7/32 or 10.0.0.0/16.")


def test_checks_of_disk_size_cost_and_python_refuse_bad_values():
    assert check_disk_gb(200) == 200
    assert check_max_cost_usd(50) == 50.0
    assert check_python("/usr/bin/python3.12") == "/usr/bin/python3.12"
    for size in (0, -1, 1.5, "200", True, None, 10**9):
        assert refusal(check_disk_gb, size).endswith(
            "a size is a whole number of GB above 0 and at most 1000000."
        )
    for cost in (0, -1, "5", True, None, float("nan"), float("inf")):
        assert refusal(check_max_cost_usd, cost).endswith("a cost is a number of US dollars above 0.")
    for python in ("", "python3", "~/python", "/a\nb", 3, None):
        assert "absolute path of an interpreter" in refusal(check_python, python)


def test_checks_of_port_and_bastion_refuse_bad_values():
    assert [check_port(port) for port in (1, 22, 65535)] == [1, 22, 65535]
    for port in (0, 65536, -1, "22", True, 2.0, None):
        assert refusal(check_port, port).endswith("a port is a whole number from 1 to 65535.")
    assert check_bastion(" opc@b:22 ") == "opc@b:22"
    assert refusal(check_bastion, 7) == f"Bastion 7 {BASTION}"
    assert check_option("bastion", "opc@b") == "opc@b"
    assert check_option("subnet_id", "subnet-1") == "subnet-1"


def test_read_spec_reads_every_key(write, tmp_path):
    path = write(
        "cluster: a10\nprovider: oci\nshape: VM.GPU.A10.2\ncount: 2\nregion: us-ashburn-1\nimage: ocid1.image\n"
        "disk_gb: 200\nspot: true\nssh_cidr: 203.0.113.7\nttl: 4h\nmax_cost_usd: 50\nhosts: sub/hosts.yaml\n"
        "python: /usr/bin/python3\ncompartment: ocid1.compartment\nprofile: work\n"
        "network:\n  subnet_id: ocid1.subnet\n  public_ip: false\n  bastion: opc@b:2222\n  ssh_port: 2200\n"
    )
    assert read_spec(path) == Spec(
        cluster="a10", provider="oci", shape="VM.GPU.A10.2", count=2, region="us-ashburn-1", image="ocid1.image",
        disk_gb=200, spot=True, ssh_cidr="203.0.113.7/32", ttl_s=14400.0, max_cost_usd=50.0,
        hosts=tmp_path / "sub" / "hosts.yaml", python="/usr/bin/python3", compartment="ocid1.compartment",
        profile="work", subnet_id="ocid1.subnet", public_ip=False, bastion="opc@b:2222", ssh_port=2200,
    )  # fmt: skip


def test_read_spec_reads_setup_lines_and_tasks(write):
    path = write(
        "setup:\n  - echo one\n  - |\n    echo two\n    echo three\n  - run: ls\n  - fab: prepare --bucket 'my b'\n"
    )
    assert read_spec(path).setup == (
        SetupStep(kind="run", text="echo one"),
        SetupStep(kind="run", text="echo two\necho three"),
        SetupStep(kind="run", text="ls"),
        SetupStep(kind="fab", text="prepare --bucket 'my b'", folder=str(path.parent)),
    )
    assert [str(step) for step in read_spec(path).setup] == [
        "echo one",
        "echo two …",
        "ls",
        "gpuctl fab prepare --bucket 'my b'",
    ]
    assert read_spec(write("setup: []\n")).setup == ()
    assert read_spec(write("count: 2\n")).setup is None


def test_read_spec_has_defaults_for_all_keys(write):
    assert read_spec(write("{}\n")) == Spec()
    assert read_spec(write("count: 3\n")) == Spec(count=3)


def test_read_spec_resolves_paths_against_spec_folder_or_home(write, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    write("hosts: ../hosts.yaml\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read_spec(Path("../spec.yaml")).hosts == tmp_path / "elsewhere" / ".." / ".." / "hosts.yaml"
    monkeypatch.setenv("HOME", "/home/me")
    write("hosts: ~/hosts.yaml\n")
    assert read_spec(Path("../spec.yaml")).hosts == Path("/home/me/hosts.yaml")


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", [f"1: the spec is empty; it should be keys with values. {ALLOWED}"]),
        ("- a\n", [f'1: the spec holds ["a"]; it should be keys with values. {ALLOWED}']),
        ("count: 1\nshap: x\n", [f"2: key 'shap' is not known; did you mean 'shape'? {ALLOWED}"]),
        ("colour: x\n", [f"1: key 'colour' is not known. {ALLOWED}"]),
        ("Count: 2\n", [f"1: key 'Count' is not known; did you mean 'count'? {ALLOWED}"]),
        (
            "count: 1\ncount: 2\n",
            ["2: key 'count' is there a second time; the first is in line 1. Remove one of them."],
        ),
        ("count: 0\n", [f"1: key 'count': Count 0 {COUNT} `gpuctl down` removes a cluster."]),
        ("count: two\n", [f"1: key 'count': Count 'two' {COUNT}"]),
        (
            "cluster: a/b\n",
            [
                "1: key 'cluster': Cluster name 'a/b' can't be used: a name is 1 to 40 of a-z, 0-9 and '-', "
                "and begins and ends with a letter or digit."
            ],
        ),
        ("spot: 'yes'\n", ["1: key 'spot': 'yes' can't be used: it should be true or false."]),
        ("region: no\n", [f"1: key 'region': false {NO_TEXT}"]),
        ("shape:\n", [f"1: key 'shape': null {NO_TEXT}"]),
        ("image: ' '\n", [f"1: key 'image': ' ' {NO_TEXT}"]),
        ("provider: [oci]\n", [f"1: key 'provider': [\"oci\"] {NO_TEXT}"]),
        ("hosts: 7\n", [f"1: key 'hosts': 7 {NO_TEXT}"]),
        (
            "ttl: 4\n",
            [
                "1: key 'ttl': Duration 4 can't be used: a duration is a number above 0 with its unit "
                "s, m, h or d, as in 90s, 30m, 4h or 1d."
            ],
        ),
        ("compartment: a b\n", [f"1: key 'compartment': 'a b' {NO_WORD}"]),
        ("network:\n", [f"1: key 'network' is empty; it should be keys with values. {NETWORK}"]),
        ("network: 7\n", [f"1: key 'network' holds 7; it should be keys with values. {NETWORK}"]),
        ("netwrok: {}\n", [f"1: key 'netwrok' is not known; did you mean 'network'? {ALLOWED}"]),
        ("bastion: a@b\n", [f"1: key 'bastion' is not known here; put it under 'network'. {ALLOWED}"]),
        (
            "network:\n  shape: x\n  subnetid: y\n",
            [
                f"2: key 'network.shape' is not known here; put it at the top. {NETWORK}",
                f"3: key 'network.subnetid' is not known; did you mean 'subnet_id'? {NETWORK}",
            ],
        ),
        (
            "network:\n  public_ip: no thanks\n  ssh_port: 0\n  bastion: a b\n  subnet_id: -x\n",
            [
                "2: key 'network.public_ip': 'no thanks' can't be used: it should be true or false.",
                "3: key 'network.ssh_port': Port 0 can't be used: a port is a whole number from 1 to 65535.",
                f"4: key 'network.bastion': Bastion 'a b' {BASTION}",
                f"5: key 'network.subnet_id': '-x' {NO_WORD}",
            ],
        ),
        (
            "setup: echo\n",
            ["1: key 'setup': 'echo' can't be used: it should be a list of shell lines, each after '- '."],
        ),
        (
            "setup:\n",
            ["1: key 'setup': null can't be used: it should be a list of shell lines, each after '- '."],
        ),
        (
            "setup:\n  - 7\n  - echo fine\n  - echo a: b\n  - 'fab: who'\n  - fab: it's\n  - fab: --help\n  - fab:\n",
            [
                f"2: key 'setup': 7 {NO_TEXT}",
                f'4: key \'setup\': {{"echo a": "b"}} {NO_STEP}',
                "5: key 'setup': 'fab: who' can't be used: write it without quotes, as in - fab: …",
                "6: key 'setup': \"it's\" can't be used: no closing quotation.",
                "7: key 'setup': '--help' can't be used: it should begin with the name of a task.",
                f"8: key 'setup': null {NO_TEXT}",
            ],
        ),
        (
            "hosts: ~nobody-has-that-name/x\n",
            [
                "1: key 'hosts': '~nobody-has-that-name/x' can't be used: that user's home folder is not known."
            ],
        ),
        (
            "shape: A\n\nshpae: B\ncount: -1\ndisk_gb: big\n",
            [
                f"3: key 'shpae' is not known; did you mean 'shape'? {ALLOWED}",
                f"4: key 'count': Count -1 {COUNT}",
                "5: key 'disk_gb': Disk size 'big' can't be used: a size is a whole number of GB above 0 "
                "and at most 1000000.",
            ],
        ),
    ],
)
def test_read_spec_names_line_and_problem(write, text, problems):
    path = write(text)
    assert refusal(read_spec, path).splitlines() == [f"{path}:{problem}" for problem in problems]


def test_read_spec_reports_missing_file(tmp_path):
    assert (
        refusal(read_spec, tmp_path / "x.yaml")
        == f"Can't read '{tmp_path}/x.yaml': No such file or directory."
    )
