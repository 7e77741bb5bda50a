"""The inventory that gpuctl writes: Ansible reads it, and we read it back."""

import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inventories.ansible.inventory import read_hosts_file, read_inventory, write_inventory
from inventories.errors import CorruptFile, NewerFormat
from inventories.machine import Inventory, Machine

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHPzVx2HfQ0pZ3yT0hUlf2Ydu2bKGm3sQ2ZyKkKkKkKk"

FIRST = Machine(
    name="demo-0", rank=0, state="running", host="203.0.113.7", port=2201, user="ubuntu", private_ip="10.0.0.2",
    gpus=2, id="ocid1.instance.oc1..a", shape="VM.GPU.A10.2", key_file=Path("/h/keys/id_ed25519"),
    python="/usr/bin/python3.12", host_key=HOST_KEY, launched_at="2026-11-21T05:45:01+00:00",
)  # fmt: skip
SECOND = Machine(
    name="demo-1",
    rank=1,
    state="unknown",
    host="203.0.113.8",
    user="ubuntu",
    private_ip="10.0.0.3",
    gpus=None,
    id="7",
)
DEMO = Inventory(
    cluster="demo", provider="oci", region="us-ashburn-1", shape="VM.GPU.A10.2", hourly_usd=8.0,
    created_at="2026-11-21T05:46:25Z", machines=(FIRST, SECOND),
)  # fmt: skip

TEXT = f"""\
# An Ansible inventory, written by gpuctl; `gpuctl up` and `gpuctl down` replace it.
all:
  vars:
    gpuctl:
      format: 1
      cluster: demo
      provider: oci
      region: us-ashburn-1
      shape: VM.GPU.A10.2
      hourly_usd: 8.0
      created_at: '2026-11-21T05:46:25Z'
    ansible_ssh_common_args: -o 'UserKnownHostsFile="/h/known_hosts"' -o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes
  children:
    gpu:
      hosts:
        demo-0:
          ansible_host: 203.0.113.7
          ansible_port: 2201
          ansible_user: ubuntu
          rank: 0
          private_ip: 10.0.0.2
          gpus: 2
          id: ocid1.instance.oc1..a
          state: running
          ansible_ssh_private_key_file: /h/keys/id_ed25519
          ansible_python_interpreter: /usr/bin/python3.12
          shape: VM.GPU.A10.2
          host_key: {HOST_KEY}
          launched_at: '2026-11-21T05:45:01+00:00'
        demo-1:
          ansible_host: 203.0.113.8
          ansible_port: 22
          ansible_user: ubuntu
          rank: 1
          private_ip: 10.0.0.3
          gpus: null
          id: '7'
          state: unknown
...
"""  # noqa: E501

texts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1).filter(
    lambda text: not text.startswith("-") and "{{" not in text and "{%" not in text
)
words = texts.filter(lambda text: '"' not in text)
lines = texts | st.lists(texts, min_size=1).map(" ".join)
paths = lines.map(lambda text: Path("/" + text)).filter(lambda path: not path.name.endswith(" "))


@st.composite
def inventories(draw):
    count = draw(st.integers(0, 5))
    names = draw(
        st.lists(
            st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,8}[a-z0-9])?", fullmatch=True),
            min_size=count,
            max_size=count,
            unique=True,
        )
    )
    machines = tuple(
        Machine(
            name=name,
            rank=rank,
            state=draw(st.sampled_from(["pending", "running", "stopped", "gone", "unknown"])),
            host=draw(words),
            port=10_000 + rank,
            user=draw(words),
            bastion=draw(st.none() | st.sampled_from(["opc@gate", "gate:2222", "a@[2001:db8::7]:22"])),
            private_ip=draw(words),
            gpus=draw(st.none() | st.integers(0, 16)),
            id=draw(lines),
            shape=draw(st.none() | lines),
            key_file=draw(st.none() | paths),
            python=draw(st.none() | lines.map(lambda text: "/" + text)),
            host_key=draw(st.none() | st.just(HOST_KEY)),
            launched_at=draw(st.none() | lines),
        )
        for rank, name in enumerate(names)
    )
    return Inventory(
        cluster=draw(lines), provider=draw(lines), region=draw(st.none() | lines), shape=draw(st.none() | lines),
        hourly_usd=draw(st.none() | st.floats(0, 1e6)), created_at=draw(lines), machines=machines,
    )  # fmt: skip


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "inventory.yaml"


def test_write_inventory_writes_exact_yaml():
    assert write_inventory(DEMO, known_hosts=Path("/h/known_hosts")) == TEXT


def test_ansible_reads_written_inventory(path, ansible_list):
    path.write_text(write_inventory(DEMO, known_hosts=Path("/h/known_hosts")))
    document = ansible_list(path)
    assert document["all"]["children"] == ["ungrouped", "gpu"]
    assert document["gpu"] == {"hosts": ["demo-0", "demo-1"]}
    first, second = (document["_meta"]["hostvars"][name] for name in ("demo-0", "demo-1"))
    assert first == {
        "ansible_host": "203.0.113.7", "ansible_port": 2201, "ansible_user": "ubuntu",
        "ansible_ssh_private_key_file": "/h/keys/id_ed25519", "ansible_python_interpreter": "/usr/bin/python3.12",
        "ansible_ssh_common_args": "-o 'UserKnownHostsFile=\"/h/known_hosts\"' "
        "-o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes",
        "rank": 0, "private_ip": "10.0.0.2", "gpus": 2, "shape": "VM.GPU.A10.2", "id": "ocid1.instance.oc1..a",
        "state": "running", "host_key": HOST_KEY, "launched_at": "2026-11-21T05:45:01+00:00",
        "gpuctl": {
            "format": 1, "cluster": "demo", "provider": "oci", "region": "us-ashburn-1", "shape": "VM.GPU.A10.2",
            "hourly_usd": 8.0, "created_at": "2026-11-21T05:46:25Z",
        },
    }  # fmt: skip
    assert second["gpus"] is None
    assert second["id"] == "7"
    assert "ansible_ssh_private_key_file" not in second


def test_ansible_reads_a_cluster_without_machines(path, ansible_list):
    path.write_text(write_inventory(replace(DEMO, machines=())))
    assert "hostvars" in ansible_list(path)["_meta"]
    assert read_inventory(path) == replace(DEMO, machines=())


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the system's ssh client")
@pytest.mark.parametrize("folder", ["/plain", "/with space", "/with'quote", "/100%h"])
def test_ssh_accepts_known_hosts_options_of_inventory(path, folder):
    path.write_text(write_inventory(DEMO, known_hosts=Path(folder) / "known_hosts"))
    (argument,) = [line for line in path.read_text().splitlines() if "ansible_ssh_common_args" in line]
    import yaml

    options = shlex.split(yaml.safe_load(argument)["ansible_ssh_common_args"])
    done = subprocess.run(
        ["ssh", "-G", "-F", "/dev/null", *options, "host"], capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 0, done.stderr
    effective = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert effective["userknownhostsfile"].replace("%%", "%") == f"{folder}/known_hosts"
    assert effective["globalknownhostsfile"] == "/dev/null"
    assert effective["stricthostkeychecking"] in ("true", "yes")


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the system's ssh client")
@pytest.mark.parametrize("known_hosts", [Path("/a b/known_hosts"), None])
def test_ansible_gets_bastion_of_machine(path, ansible_list, known_hosts):
    behind = replace(DEMO, machines=(replace(FIRST, bastion="opc@203.0.113.20:2222"), SECOND))
    path.write_text(write_inventory(behind, known_hosts=known_hosts))
    assert read_inventory(path) == behind
    hosts = ansible_list(path)["_meta"]["hostvars"]
    options = shlex.split(hosts["demo-0"]["ansible_ssh_common_args"])
    done = subprocess.run(
        ["ssh", "-G", "-F", "/dev/null", *options, "host"], capture_output=True, text=True, timeout=20
    )
    effective = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert re.sub(r"[\[\]]", "", effective["proxyjump"]) == "opc@203.0.113.20:2222"
    assert (effective["userknownhostsfile"] == str(known_hosts)) == (known_hosts is not None)
    assert "ProxyJump" not in hosts["demo-1"].get("ansible_ssh_common_args", "")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(inventory=inventories())
def test_read_inventory_returns_what_was_written(tmp_path_factory, inventory):
    path = tmp_path_factory.getbasetemp() / "round-trip.yaml"
    path.write_text(write_inventory(inventory, known_hosts=Path("/h/known_hosts")))
    assert read_inventory(path) == inventory


def test_read_hosts_file_accepts_written_inventory(path, tmp_path):
    key = tmp_path / "key"
    key.write_text("")
    machines = (replace(FIRST, key_file=key), SECOND)
    path.write_text(write_inventory(replace(DEMO, machines=machines)))
    assert read_hosts_file(path) == machines


def test_write_inventory_makes_key_paths_absolute(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    machine = replace(FIRST, key_file=Path("key"))
    path.write_text(write_inventory(replace(DEMO, machines=(machine,)), known_hosts=Path("known_hosts")))
    assert read_inventory(path).machines[0].key_file == tmp_path / "key"
    assert f'UserKnownHostsFile="{tmp_path}/known_hosts"' in path.read_text()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("      provider: oci\n", "", "4: key 'gpuctl.provider' should be text, but is null."),
        ("provider: oci", "provider: 7", "7: key 'gpuctl.provider' should be text, but is 7."),
        ("hourly_usd: 8.0", "hourly_usd: x", "10: key 'gpuctl.hourly_usd' should be a number, but is 'x'."),
        ("hourly_usd: 8.0", "hourly_usd: true", "10: key 'gpuctl.hourly_usd' should be a number, but is true."),
        ("      format: 1\n", "", "4: key 'gpuctl.format' is missing."),
        ("rank: 1", "rank: 0", "34: host 'demo-1' has rank 0, which host 'demo-0' in line 20 has too. "
         "Give each a rank of its own, or none any."),
        ("rank: 1", "rank: 2",
         "34: host 'demo-1' has rank 2, but ranks begin at 0 and end at 1 here, one for each host."),
        ("          rank: 1\n", "", "30: host 'demo-1' has no rank."),
        ("state: unknown", "state: well", "38: state should be one of pending, running, stopped, gone, unknown, "
         "but is 'well'."),
        ("id: '7'", "id: 7", "37: id should be text (put it in quotes if it is), but is 7."),
        ("        demo-1:", "        demo-0:", "30: key 'demo-0' is there a second time; the first is in line 16. "
         "Remove one of them."),
        ("ansible_host: 203.0.113.8\n          ansible_port: 22\n", "ansible_host: 203.0.113.7\n          "
         "ansible_port: 2201\n", "30: host 'demo-1' has the same address and port, 203.0.113.7 port 2201, "
         "as host 'demo-0' in line 16. Remove one of them."),
        (f"host_key: {HOST_KEY}", "host_key: none", "28: host_key should be a public key as in "
         "'ssh-ed25519 AAAA…', but is 'none'."),
    ],
)  # fmt: skip
def test_read_inventory_names_line_and_problem_of_bad_edit(path, old, new, problem):
    assert TEXT.count(old) >= 1
    head, _, tail = TEXT.rpartition(old)
    path.write_text(head + new + tail)
    with pytest.raises(CorruptFile) as caught:
        read_inventory(path)
    assert f"{path}:{problem}" in str(caught.value).splitlines()


@pytest.mark.parametrize(
    "text", ["", "...\n", "all:\n...\n", "[]\n...\n", "all: {vars: {gpuctl: []}}\n...\n", "all: 3\n...\n"]
)
def test_read_inventory_refuses_files_gpuctl_did_not_write(path, text):
    path.write_text(text)
    with pytest.raises(CorruptFile) as caught:
        read_inventory(path)
    assert str(path) in str(caught.value)


def test_read_inventory_names_missing_file(path):
    with pytest.raises(CorruptFile, match=f"Can't read '{path}': No such file or directory"):
        read_inventory(path)


@pytest.mark.parametrize("read", [read_inventory, read_hosts_file])
def test_readers_refuse_newer_inventory_format(path, read):
    path.write_text(TEXT.replace("format: 1", "format: 2").replace("rank: 0", "ranks: [0]"))
    with pytest.raises(NewerFormat, match=r"written by a newer gpuctl \(format 2; this one reads up to 1\)"):
        read(path)


def test_read_inventory_refuses_invalid_format(path):
    path.write_text(TEXT.replace("format: 1", "format: one"))
    with pytest.raises(CorruptFile, match="key 'format' should be 1, but is \"one\""):
        read_inventory(path)


def test_read_inventory_refuses_file_cut_between_machines(path):
    path.write_text(TEXT[: TEXT.index("        demo-1:")])
    with pytest.raises(CorruptFile, match=r"it is cut off, as its last line is not '\.\.\.'"):
        read_inventory(path)
