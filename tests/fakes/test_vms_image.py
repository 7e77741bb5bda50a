"""The files and the boot of VM-like hosts, as text."""

from pathlib import Path

from tests.fakes.vms import Options
from tests.fakes.vms.boot import Place, config, hidden
from tests.fakes.vms.image import Accounts, File, Ground, Login, hosts_text, image, sshd_text


def test_hosts_and_sshd_files_follow_the_options() -> None:
    options = Options(sshd=("MaxSessions 2",))
    local = "::1 ip6-localhost ip6-loopback\n"
    assert hosts_text(options, name="gpu-0", address="10.77.0.10") == (
        "127.0.1.1 gpu-0 gpu-0\n127.0.0.1 localhost\n\n" + local
    )
    clean = Options(own_name="address")
    assert hosts_text(clean, name="gpu-0", address="10.77.0.10").startswith("10.77.0.10 gpu-0 gpu-0\n")
    assert sshd_text(options).startswith("MaxSessions 2\nPasswordAuthentication no\n")


def test_image_user_replaces_an_existing_user_of_that_name() -> None:
    accounts = Accounts(
        passwd="root:x:0:0:root:/root:/bin/bash\nubuntu:x:1000:1000::/srv:/bin/sh\n",
        group="root:x:0:\nubuntu:x:1000:\ndocker:x:1001:\n",
        shadow="root:*:1::::::\nubuntu:secret:1::::::\n",
    )
    login = Login(authorized_key="KEY", host_key="PRIVATE", host_key_public="PUBLIC")
    ground = Ground(accounts=accounts, netfilter_persistent=True, faketime=None)
    files, links = image(Options(), name="gpu-0", address="10.77.0.10", login=login, ground=ground)
    by_path = {file.path: file for file in files}
    assert by_path["/etc/passwd"].text == (
        "root:x:0:0:root:/root:/bin/bash\nubuntu:x:1002:1002:Ubuntu:/home/ubuntu:/bin/bash\n"
    )
    assert by_path["/etc/group"].text == "root:x:0:\ndocker:x:1001:\nubuntu:x:1002:\n"
    assert by_path["/etc/shadow"].text == "root:*:1::::::\nubuntu:!:19000:0:99999:7:::\n"
    assert by_path["/home/ubuntu/.ssh/authorized_keys"] == File(
        path="/home/ubuntu/.ssh/authorized_keys", text="KEY\n", mode=0o600, owner=(1002, 1002)
    )
    assert [link.target for link in links if link.path == "/etc/alternatives/iptables"] == [
        "/usr/sbin/iptables-nft"
    ]


def test_ufw_is_enabled_only_at_the_first_boot() -> None:
    place = Place(folder=Path("/scratch/gpu-0"), index=0, name="gpu-0", address="10.77.0.10", switch_pid=7)
    first = config(Options(firewall="ufw"), place, first=True)["steps"]
    later = config(Options(firewall="ufw"), place, first=False)["steps"]
    assert [step["argv"] for step in first[-2:]] == [("ufw", "allow", "22/tcp"), ("ufw", "--force", "enable")]
    assert later == [*first[:-2], {"argv": ("/lib/ufw/ufw-init", "start"), "text": ""}]


def test_hidden_returns_paths_below_tmp_and_home() -> None:
    paths = [Path("/srv/checkout"), Path("/tmp/checkout"), Path("/home/me/.venv"), Path("/tmpfiles")]
    assert hidden(paths) == (Path("/tmp/checkout"), Path("/home/me/.venv"))
