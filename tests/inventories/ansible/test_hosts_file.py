"""Inventories that a person wrote."""

import getpass
import json

import pytest

from inventories.ansible.inventory import read_hosts_file, read_inventory, write_inventory
from inventories.errors import InvalidInput
from inventories.machine import Inventory, Machine

READS = (
    "gpuctl reads ansible_host, ansible_port, ansible_user, gpuctl_transport, ansible_kubectl_context, bastion, "
    "ansible_ssh_args, ansible_ssh_common_args, ansible_ssh_extra_args, "
    "ansible_ssh_private_key_file, ansible_python_interpreter, rank, private_ip, gpus, "
    "shape, id, state, host_key, launched_at, ssh_alias."
)

# Every rule of precedence at once: depth, priority, name, several ways to a group, host over group.
NESTED = """
all:
  vars: {ansible_user: from-all, ansible_port: 1000, gpus: 1}
  hosts:
    lone: {ansible_host: 10.0.0.1}
  children:
    site:
      vars: {ansible_user: from-site, shape: site}
      children:
        rack_b:
          vars: {ansible_user: from-b, shape: b, ansible_port: 2000}
          hosts:
            both: {ansible_host: 10.0.0.2}
            only_b: {ansible_host: 10.0.0.3, ansible_user: own}
        rack_a:
          vars: {ansible_user: from-a, shape: a}
          hosts:
            both: {private_ip: 10.1.0.2}
            only_a: {ansible_host: 10.0.0.4}
    strong:
      vars: {ansible_group_priority: 5, gpus: 5, shape: strong}
      hosts:
        only_a:
        strong_one: {ansible_host: 10.0.0.5}
    weak:
      vars: {gpus: 4, shape: weak}
      hosts:
        strong_one:
        twice: {ansible_host: 10.0.0.6}
late:
  vars: {ansible_port: 3000}
  hosts:
    twice:
  children:
    rack_a:
    deeper:
      vars: {shape: deeper}
      hosts:
        twice:
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str):
        path = tmp_path / "hosts.yaml"
        path.write_text(text)
        return path

    return write


def machine(name: str, rank: int, **known) -> Machine:
    host = known.get("host", name)
    plain = {"state": "unknown", "host": host, "user": "me", "private_ip": host, "gpus": None, "id": name}
    return Machine(name=name, rank=rank, **{**plain, **known})


def problems(path) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        read_hosts_file(path)
    return str(caught.value).replace(str(path), "FILE").splitlines()


def test_read_hosts_file_accepts_address_and_user_only(write):
    path = write("all:\n  hosts:\n    one: {ansible_host: 10.0.0.1, ansible_user: me}\n")
    assert read_hosts_file(path) == (machine("one", 0, host="10.0.0.1"),)


def test_read_hosts_file_accepts_host_name_only(write, monkeypatch):
    monkeypatch.setenv("LOGNAME", "someone")
    assert getpass.getuser() == "someone"
    path = write("all:\n  hosts:\n    gpu-1.example.com:\n    gpu-2.example.com: {}\n")
    assert read_hosts_file(path) == (
        machine("gpu-1.example.com", 0, user="someone"),
        machine("gpu-2.example.com", 1, user="someone"),
    )


def test_read_hosts_file_reads_every_variable(write, tmp_path):
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "id").write_text("")
    host_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHPz"
    path = write(
        "all:\n  hosts:\n    one:\n      ansible_host: 2001:db8::1\n      ansible_port: '2222'\n"
        "      ansible_user: me\n      ansible_ssh_private_key_file: keys/id\n"
        "      ansible_python_interpreter: /opt/my env/bin/python\n      rank: 0\n      private_ip: node-1.internal\n"
        f"      gpus: 8\n      shape: DGX\n      id: rack-7\n      state: running\n      host_key: {host_key}\n"
    )
    assert read_hosts_file(path) == (
        Machine(
            name="one", rank=0, state="running", host="2001:db8::1", port=2222, user="me",
            private_ip="node-1.internal", gpus=8, id="rack-7", shape="DGX", key_file=tmp_path / "keys" / "id",
            python="/opt/my env/bin/python", host_key=host_key,
        ),
    )  # fmt: skip


def test_read_hosts_file_requires_ipv4_private_address(write):
    text = "all:\n  vars: {{ansible_user: me}}\n  hosts:\n    one:\n      ansible_host: 2001:db8::1\n{}"
    needs = "host 'one' needs a private_ip that is an IPv4 address, and {} is none: the machines reach "
    for private, where in (("", "4: "), ("      private_ip: fd00::7\n", "6: ")):
        (problem,) = problems(write(text.format(private)))
        assert problem.startswith(f"FILE:{where}" + needs.format("fd00::7" if private else "2001:db8::1"))
    path = write(text.format("      private_ip: 10.0.0.7\n"))
    assert read_hosts_file(path) == (machine("one", 0, host="2001:db8::1", private_ip="10.0.0.7"),)


def test_read_hosts_file_resolves_relative_and_home_key_paths(write, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "sub").mkdir()
    for key in ("k1", "home/k2", "k3"):
        (tmp_path / key).write_text("")
    write(
        "all:\n  vars: {ansible_user: me}\n  hosts:\n"
        "    a: {ansible_ssh_private_key_file: k1}\n"
        "    b: {ansible_ssh_private_key_file: ~/k2}\n"
        f"    c: {{ansible_ssh_private_key_file: {tmp_path}/k3}}\n"
    )
    monkeypatch.chdir(tmp_path / "sub")
    machines = read_hosts_file((tmp_path / "sub" / ".." / "hosts.yaml").relative_to(tmp_path / "sub"))
    keys = [machine.key_file for machine in machines]
    assert all(key is not None and key.is_absolute() for key in keys)
    assert [key.resolve() for key in keys if key] == [
        tmp_path / "k1",
        tmp_path / "home" / "k2",
        tmp_path / "k3",
    ]


def test_read_hosts_file_reads_ansible_alias_variables(write, tmp_path):
    (tmp_path / "k").write_text("")
    path = write(
        "all:\n  hosts:\n"
        "    a: {ansible_ssh_host: 10.0.0.1, ansible_ssh_port: 7, ansible_ssh_user: me, "
        "ansible_private_key_file: k}\n"
        "    b: {ansible_host: 10.0.0.2, ansible_ssh_host: 10.0.0.9, ansible_user: me, "
        "ansible_python_interpreter: auto_silent}\n"
        "    c: {ansible_user: me, ansible_python_interpreter: python3.12}\n"
    )
    assert read_hosts_file(path) == (
        machine("a", 0, host="10.0.0.1", port=7, key_file=tmp_path / "k"),
        machine("b", 1, host="10.0.0.2"),
        machine("c", 2, python="python3.12"),
    )


def test_read_hosts_file_assigns_free_ranks_in_file_order(write):
    path = write(
        "all:\n  vars: {ansible_user: me}\n  hosts:\n    a:\n    b: {rank: 0}\n    c:\n    d: {rank: 2}\n    e:\n"
    )
    assert [(machine.name, machine.rank) for machine in read_hosts_file(path)] == [
        ("b", 0), ("a", 1), ("d", 2), ("c", 3), ("e", 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "all: {hosts: {a: {ansible_user: me}, b: {ansible_user: me}}}",
        "all: {children: {gpu: {hosts: {a: {ansible_user: me}, b: {ansible_user: me}}}}}",
        "all: {children: {x: {children: {y: {hosts: {a: {ansible_user: me}, b: {ansible_user: me}}}}}}}",
        "gpu: {hosts: {a: {ansible_user: me}, b: {ansible_user: me}}}",
        "all: {vars: {ansible_user: me}, children: {x: {hosts: {a: }}, y: {hosts: {b: }}}}",
        "all: {vars: {ansible_user: me}, hosts: {a: , b: }, children: {x: {hosts: {b: }}, y: , z: {hosts: }}}",
    ],
)
def test_read_hosts_file_finds_hosts_in_any_group(write, text):
    assert read_hosts_file(write(text)) == (machine("a", 0), machine("b", 1))


def test_read_hosts_file_follows_ansible_variable_precedence(write, ansible_list):
    path = write(NESTED)
    document = ansible_list(path)["_meta"]["hostvars"]
    machines = read_hosts_file(path)
    assert {machine.name for machine in machines} == set(document)
    for result in machines:
        expected = document[result.name]
        assert (result.host, result.user, result.port, result.gpus, result.shape) == (
            expected["ansible_host"], expected["ansible_user"], expected["ansible_port"], expected["gpus"],
            expected.get("shape"),
        ), result.name  # fmt: skip
    by_name = {machine.name: machine for machine in machines}
    assert by_name["only_b"].user == "own"
    assert by_name["lone"].user == "from-all"
    assert by_name["both"].private_ip == "10.1.0.2"
    assert by_name["strong_one"].gpus == 5


def test_read_hosts_file_reports_unknown_group_variable_once(write):
    hosts = "".join(f"    n{number}:\n" for number in range(30))
    assert problems(write(f"all:\n  vars: {{ansible_prot: 22}}\n  hosts:\n{hosts}")) == [
        f"FILE:2: key 'ansible_prot' is not known; did you mean 'ansible_port'? {READS}"
    ]


@pytest.mark.parametrize(
    ("variables", "bastion"),
    [
        ("bastion: opc@gate:2222", "opc@gate:2222"),
        ("jump: opc@gate:2222", "opc@gate:2222"),  # as earlier releases wrote it
        ("ansible_ssh_common_args: -o ProxyJump=opc@gate", "opc@gate"),
        ("ansible_ssh_common_args: -A -oproxyjump=gate -o ControlPath='{{ x }}'", "gate"),
        ("ansible_ssh_common_args: '-o \"ProxyJump opc@[::1]:22\"'", "opc@[::1]:22"),
        ("ansible_ssh_common_args: -C -J gate", "gate"),
        ("ansible_ssh_common_args: -Jgate", "gate"),
        ("{ansible_ssh_common_args: -J one, bastion: two}", "two"),
        ("ansible_ssh_common_args: -o ProxyJump=none", None),
        ("ansible_ssh_common_args: -o", None),
        ("ansible_ssh_common_args: -o ServerAliveInterval=5 -F '{{ x }}'", None),
        ("ansible_ssh_extra_args: -J gate", "gate"),
        ("{ansible_ssh_extra_args: -J one, ansible_ssh_args: -J two}", "two"),
        ("ansible_ssh_common_args:", None),
        ("bastion:", None),
    ],
)
def test_read_hosts_file_reads_bastion_variables(write, variables, bastion):
    hosts = f"all:\n  vars:\n    {variables}\n  hosts:\n    a: {{ansible_user: me}}\n"
    assert read_hosts_file(write(hosts)) == (machine("a", 0, bastion=bastion),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("opc@192.0.2.1: ", ("192.0.2.1", "192.0.2.1", "opc", 22)),
        ("'192.0.2.1:2222': ", ("192.0.2.1-2222", "192.0.2.1", "me", 2222)),
        ("'opc@gpu.example:2222': ", ("gpu.example-2222", "gpu.example", "opc", 2222)),
        ("'2001:db8::1': {private_ip: 10.0.0.1}", ("2001-db8--1", "2001:db8::1", "me", 22)),
        ("'[2001:db8::1]:2222': {private_ip: 10.0.0.1}", ("2001-db8--1-2222", "2001:db8::1", "me", 2222)),
        ("a: {ansible_host: opc@192.0.2.1}", ("a", "192.0.2.1", "opc", 22)),
        ("a: {ansible_host: opc@192.0.2.1, ansible_user: root}", ("a", "192.0.2.1", "root", 22)),
        ("a: {ansible_host: '192.0.2.1:2222', ansible_port: 2222}", ("a", "192.0.2.1", "me", 2222)),
        ("a: {ansible_host: '[2001:db8::1]', private_ip: 10.0.0.1}", ("a", "2001:db8::1", "me", 22)),
        ("a: {ansible_ssh_extra_args: -p 2222 -l opc}", ("a", "a", "opc", 2222)),
        ("a: {ansible_ssh_args: -Cp2222 -o User=opc, ansible_port: 22}", ("a", "a", "opc", 22)),
        ("a: {ansible_connection: ansible.builtin.ssh}", ("a", "a", "me", 22)),
    ],
)
def test_read_hosts_file_reads_addresses_as_people_write_them(write, monkeypatch, text, expected):
    monkeypatch.setenv("LOGNAME", "me")
    (result,) = read_hosts_file(write(f"all:\n  hosts:\n    {text}\n"))
    assert (result.name, result.host, result.user, result.port) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ansible_connection: local", "for machines on this computer: gpuctl up --provider local"),
        ("ansible_connection: community.docker.docker", "run an SSH server in the container"),
        ("ansible_connection: winrm", "machines need Linux and an SSH server"),
        ("ansible_password: x", "remove the line: ssh-copy-id -p 2222 opc@192.0.2.1"),
        ("ansible_ssh_pass: '{{ vault }}'", "remove the line: ssh-copy-id -p 2222 opc@192.0.2.1"),
        ("ansible_host: '192.0.2.1:23'", "has port 23 in its address, and ansible_port 2222"),
    ],
)
def test_read_hosts_file_refuses_by_name(write, text, expected):
    base = "ansible_user: opc, ansible_port: 2222"
    base = base if "ansible_host" in text else f"ansible_host: 192.0.2.1, {base}"
    (result,) = problems(write(f"all:\n  hosts:\n    a: {{{base}, {text}}}\n"))
    assert expected in result
    assert text.partition(":")[0].removeprefix("ansible_host") in result


def test_first_arguments_of_ssh_count_in_ansibles_order(write):
    args = {f"ansible_ssh_{kind}args": f"-l {kind or 'first_'}user" for kind in ("extra_", "common_", "")}
    (machine,) = read_hosts_file(write(json.dumps({"all": {"hosts": {"192.0.2.1": args}}})))
    assert machine.user == "first_user"


def test_ssh_that_can_not_be_started_is_named(write, tmp_path, monkeypatch):
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text("#!/nowhere/sh\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(program.parent))
    (result,) = problems(write("all: {hosts: {alias: {ansible_user: opc}}}\n"))
    assert "ssh can't be started: No such file or directory" in result


@pytest.mark.parametrize(
    ("args", "command"),
    [
        ('-o ProxyCommand="ssh -W %h:%p -q opc@gate"', "ssh -W 192.0.2.1:2222 -q opc@gate"),
        ("-o 'ProxyCommand nc %r %%h %h'", "nc opc %h 192.0.2.1"),
        ("-J a,opc@b:23", "ssh -J a -l opc -p 23 -W '[192.0.2.1]:2222' -- b"),
        ("-o ProxyCommand=none -J gate", None),
    ],
)
def test_proxy_commands_are_kept_through_an_inventory(write, tmp_path, args, command):
    hosts = {"a": {"ansible_host": "192.0.2.1", "ansible_port": 2222, "ansible_user": "opc"}}
    hosts["a"]["ansible_ssh_common_args"] = args
    machines = read_hosts_file(write(json.dumps({"all": {"hosts": hosts}})))
    assert machines[0].proxy_command == command
    path = tmp_path / "written.yaml"
    inventory = Inventory(
        cluster="c", provider="hosts", created_at="2026-11-01T00:00:00+00:00", machines=machines
    )
    path.write_text(write_inventory(inventory, tmp_path / "known hosts"))
    assert read_inventory(path) == inventory


def test_read_hosts_file_ignores_other_ansible_variables(write):
    path = write(
        "all:\n  vars:\n    ansible_ssh_common_args: -C -o X={{ y }}\n    ansible_become: true\n"
        "    ansible_hostname: x\n    ntp_servers: [a, b]\n    message: '{{ greeting }}'\n"
        "  hosts:\n    a:\n      ansible_user: me\n      ansible_connection: ssh\n      ansible_become_user: root\n"
        "      model: A100\n"
        "      ansible_become_password: !vault |\n        $ANSIBLE_VAULT\n"
    )
    assert read_hosts_file(path) == (machine("a", 0),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["1: the inventory is empty; it should begin with `all:` and list its `hosts:`."]),
        ("- a\n", ['1: the inventory holds ["a"]; it should begin with `all:` and list its `hosts:`.']),
        ("all:\n", ["1: the inventory has no hosts; list them as `all.hosts.NAME.ansible_host: ADDRESS`."]),
        ("all: {hosts: }\n", ["1: the inventory has no hosts; list them as `all.hosts.NAME.ansible_host: ADDRESS`."]),
        ("all:\n  hosts: [a, b]\n", ["2: 'hosts' should be keys with values, but is [\"a\", \"b\"]."]),
        ("all:\n  hosts:\n    a: 10.0.0.1\n", ["3: 'a' should be keys with values, but is '10.0.0.1'."]),
        ("all:\n  host:\n    a:\n", ["2: key 'host' is not known in group 'all'; did you mean 'hosts'? "
                                     "Allowed: hosts, vars, children."]),
        ("hosts:\n  a:\n", ["1: 'hosts' is no group; put it under `all:`."]),
        (
            "all:\n  children: {g: {hsots: {a: }}}\n",
            ["2: key 'hsots' is not known in group 'g'; did you mean 'hosts'? Allowed: hosts, vars, children."],
        ),
        ("all: {hosts: {a: {}}, children: {g: {children: {g: }}}}\n", ["1: group 'g' is a child of itself."]),
        ("a: {children: {b: }}\nb:\n  children:\n    a:\n", ["4: group 'a' is a child of itself."]),
        ("all: {hosts: {a: {}}, children: {all: }}\n", ["1: group 'all' is a child of itself."]),
        (
            "all:\n  hosts:\n    a: {ansible_hots: x}\n",
            [f"3: key 'ansible_hots' is not known; did you mean 'ansible_host'? {READS}"],
        ),
        (
            "all:\n  hosts:\n    a: {privat_ip: x}\n",
            [f"3: key 'privat_ip' is not known; did you mean 'private_ip'? {READS}"],
        ),
        (
            "all:\n  hosts:\n    a: {bastion: a b}\n",
            ["3: bastion should be a bastion as in user@host or user@host:22, but is 'a b'."],
        ),
        (
            "all:\n  hosts:\n    a: {ansible_ssh_common_args: '-J a,,b'}\n",
            ["3: ansible_ssh_common_args should be a bastion as in user@host or user@host:22, but is '-J a,,b'."],
        ),
        (
            "all:\n  hosts:\n    a: {ansible_ssh_common_args: '-o \"'}\n",
            ["3: ansible_ssh_common_args should be arguments of ssh, quoted as in a shell, but is '-o \"'."],
        ),
        (
            "all:\n  hosts:\n    a:\n    b:\n    a:\n",
            ["5: key 'a' is there a second time; the first is in line 3. Remove one of them."],
        ),
        (
            "all:\n  children:\n    x: {hosts: {a: {ansible_host: h1}}}\n    y: {hosts: {a: {ansible_host: h2}}}\n",
            ["4: host 'a' has ansible_host 'h2' here, but 'h1' in line 3. Remove one of them, or give one of the "
             "hosts another name."],
        ),
        (
            "all:\n  hosts:\n    a: {rank: 1}\n    b: {rank: 1}\n",
            ["4: host 'b' has rank 1, which host 'a' in line 3 has too. Give each a rank of its own, or none any."],
        ),
        (
            "all:\n  vars: {rank: 0}\n  hosts:\n    a:\n    b:\n",
            ["2: host 'b' has rank 0, which host 'a' in line 2 has too. Give each a rank of its own, or none any."],
        ),
        ("all:\n  hosts:\n    a: {rank: 1}\n", ["3: host 'a' has rank 1, but ranks begin at 0 and end at 0 here, "
                                               "one for each host."]),
        (
            "all:\n  hosts:\n    a: {ansible_host: X}\n    b: {ansible_host: x, ansible_port: 22}\n",
            ["4: host 'b' has the same address and port, x port 22, as host 'a' in line 3. Remove one of them."],
        ),
        (
            "all:\n  hosts:\n    node[01:10]:\n",
            ["3: host name 'node[01:10]' can't be used: a name is letters, digits, '.', '_' and '-'. Give each host "
             "a line of its own, and write its address and port as ansible_host and ansible_port."],
        ),
        (
            "all:\n  hosts:\n    ../x:\n    'a b:22':\n",
            [f"{line}: host name '{name}' can't be used: a name is letters, digits, '.', '_' and '-'. Give each host "
             "a line of its own, and write its address and port as ansible_host and ansible_port."
             for line, name in ((3, "../x"), (4, "a b:22"))],
        ),
        (
            "all:\n  hosts:\n    a:\n      ansible_port: 0\n      ansible_user: 7\n      gpus: -1\n      rank: '0'\n"
            "      ansible_host: -oProxyCommand=x\n      private_ip: a b\n      state: up\n      host_key: x\n"
            "      id: ''\n      shape: [x]\n      ansible_python_interpreter: ~/python\n",
            [
                "4: ansible_port should be a port from 1 to 65535, but is 0.",
                "5: ansible_user should be text (put it in quotes if it is), but is 7.",
                "6: gpus should be a whole number from 0, but is -1.",
                "7: rank should be a whole number from 0, but is '0'.",
                "8: ansible_host should be one word without a double quote that does not begin with '-', but is "
                "'-oProxyCommand=x'.",
                "9: private_ip should be one word without a double quote that does not begin with '-', but is 'a b'.",
                "10: state should be one of pending, running, stopped, gone, unknown, but is 'up'.",
                "11: host_key should be a public key as in 'ssh-ed25519 AAAA…', but is 'x'.",
                "12: id should be text (put it in quotes if it is), but is ''.",
                "13: shape should be text (put it in quotes if it is), but is [\"x\"].",
                "14: ansible_python_interpreter should be an absolute path, the name of a command, or 'auto', "
                "but is '~/python'.",
            ],
        ),
        (
            "all:\n  hosts:\n    a:\n      ansible_user: 'o\"neil'\n",
            ["4: ansible_user should be one word without a double quote that does not begin with '-', but is "
             "'o\"neil'."],
        ),
        (
            "all:\n  hosts:\n    a: {ansible_host: '{{ inventory_hostname }}.example.com'}\n",
            ["3: ansible_host should be a plain value, as gpuctl evaluates no templates, but is "
             "'{{ inventory_hostname }}.example.com'."],
        ),
        (
            "all:\n  hosts:\n    a:\n      ansible_user: !vault |\n        x\n",
            ["4: ansible_user has the tag !vault, which gpuctl can't evaluate. Write the plain value."],
        ),
        (
            "$ANSIBLE_VAULT;1.1;AES256\n6162\n6364\n",
            [
                "1: the inventory is encrypted, and gpuctl decrypts none. Give a plain copy: "
                "ansible-vault view FILE > hosts.yaml"
            ],
        ),
        (
            "all:\n  hosts:\n    a: {ansible_ssh_private_key_file: /nowhere/id}\n",
            ["3: ansible_ssh_private_key_file: there is no file '/nowhere/id'."],
        ),
        (
            "all:\n  hosts:\n    a: {ansible_ssh_private_key_file: ~nobody-has-that-name/id}\n",
            ["3: ansible_ssh_private_key_file should be the path of a file; that user's home folder is not known, "
             "but is '~nobody-has-that-name/id'."],
        ),
    ],
)  # fmt: skip
def test_read_hosts_file_names_line_and_problem(write, text, expected):
    assert problems(write(text)) == [f"FILE:{problem}" for problem in expected]


def test_read_hosts_file_refuses_invalid_yaml_and_missing_file(write, tmp_path):
    (problem,) = problems(write("[gpu]\n10.0.0.1 ansible_user=me\n"))
    assert problem.startswith("FILE:2: this can't be read as YAML: ")
    assert problems(tmp_path / "nothing") == ["Can't read 'FILE': No such file or directory."]


def test_read_hosts_file_needs_ansible_user_if_user_is_unnamed(write, monkeypatch):
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)
    assert problems(write("all:\n  hosts:\n    a:\n")) == [
        "FILE:3: host 'a' needs ansible_user: the current user has no name."
    ]
