"""Test notifications of machines that are lost or end soon, on hosts like VMs, with commands as targets."""

import json
from pathlib import Path
from typing import Any

import pytest
from clouds import KINDS, CloudGpuctl
from support import Gpuctl, wait_for
from vm_support import cluster

from tests.fakes.client import start_fake
from tests.fakes.vms import Host, lacking

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=lacking() or "")]

TARGET = "command:cat >> ~/$GPUCTL_NOTIFY_TYPE.$(hostname).json"
METADATA = """\
ip addr add 169.254.169.254/32 dev lo
cat > /run/metadata.py <<'END'
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def answer(self):
        ok = self.command == "PUT" or self.headers["X-aws-ec2-metadata-token"] == "TOKEN"
        body = b"TOKEN" if self.command == "PUT" else b'{"action": "terminate", "time": "2100-01-01T00:00:00Z"}'
        self.send_response(200 if ok else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_PUT = do_GET = answer
HTTPServer(("169.254.169.254", 80), Handler).serve_forever()
END
/usr/bin/python3 /run/metadata.py >/dev/null 2>&1 &
"""
"""The first boot of a spot machine whose metadata has the notice of its end."""


def notices_on(host: Host) -> dict[str, Any]:
    """Return type → document of the notices that a host's command got."""
    listed = host.root(f"cd /home/{host.user} && cat *.json 2>/dev/null || true").stdout
    documents = [json.loads(line) for line in listed.replace("}{", "}\n{").splitlines()]
    return {document["type"]: document for document in documents}


def test_first_node_sends_that_another_is_lost(gpuctl: Gpuctl, tmp_path: Path) -> None:
    with cluster(gpuctl, tmp_path, count=2) as net:
        first, second = net.hosts
        run = gpuctl.ok("train", "--detach", "--json", "--notify", TARGET, "steps.py", "600").json["run"]
        wait_for(lambda: gpuctl("logs", run).out.count("begins") == 2, what="the ranks", deadline_s=60)
        second.power_off()
        wait_for(lambda: notices_on(first), what="the notice", deadline_s=260)
        (notice,) = notices_on(first).values()
        assert notice["type"] == "run.node_lost"
        assert (notice["data"]["run"], notice["data"]["node"]) == (run, second.name)
        gpuctl("stop", run)


@pytest.mark.parametrize(("by_power_cut", "type_"), [(False, "run.failed"), (True, "run.node_lost")])
def test_restart_of_the_first_node_is_sent_once(
    gpuctl: Gpuctl, tmp_path: Path, by_power_cut: bool, type_: str
) -> None:
    """The node sends as it is shut down; after a power cut only the command can."""
    with cluster(gpuctl, tmp_path, count=2) as net:
        first, _ = net.hosts
        process = gpuctl.start("train", "--notify", TARGET, "steps.py", "600", env={"HOME": str(tmp_path)})
        wait_for(lambda: gpuctl("logs").out.count("begins") == 2, what="the ranks", deadline_s=60)
        if by_power_cut:
            first.power_off()
            first.power_on()
            first.wait_for_boot()
        else:
            first.reboot()
        assert process.wait(150) == 1, process.communicate()
        sent = [json.loads(path.read_text())["type"] for path in tmp_path.glob("*.json")]
        assert [*sent, *notices_on(first)] == [type_]


def test_machines_send_before_they_end(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    profiles = tmp_path / "profiles.json"
    profiles.write_text(json.dumps([{"first_boot": METADATA}, {"first_boot": METADATA}]))
    with start_fake("aws_proxy", tmp_path, options=("--vms", str(profiles))) as cloud:
        gpuctl = CloudGpuctl(home=tmp_path / "home", cwd=tmp_path / "project", cloud=cloud, kind=KINDS["aws"])
        words = ("--shape", "g5.12xlarge", "--ssh-cidr", "127.0.0.1/32", "--driver", "none", "--yes")
        sent = {"HOME": str(tmp_path)}
        gpuctl.ok("up", *words, "--count", "2", "--spot", "--ttl", "10m", "--notify", TARGET, env=sent)
        (up,) = tmp_path.glob("command.*.json")
        assert json.loads(up.read_text())["type"] == "command.succeeded"

        def texts() -> list[str]:
            return [gpuctl("exec", "--rank", rank, "--", "cat *.json").out for rank in "01"]

        def counts(words: str) -> list[int]:
            return [text.count(words) for text in texts()]

        wait_for(lambda: all(counts("machines.ending")), what="a notice of each machine", deadline_s=60)
        wait_for(lambda: counts("their time is over") == [1, 0], what="the end of the time", deadline_s=30)
        assert counts("AWS takes the spot machine") == [1, 1]
        assert gpuctl.ok("status", "--json").json["notices"] == []
        gpuctl.ok("down", "--yes")
