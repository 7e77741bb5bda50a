"""Bad input: exit status 2, one sentence that says what to do, and no traceback."""

import re
import shlex
from pathlib import Path

import pytest
from support import Gpuctl

pytestmark = pytest.mark.slow


def refused(gpuctl: Gpuctl, *words: str, said: tuple[str, ...], cwd: Path | None = None) -> None:
    """Check that the command ends with status 2 and prints these words."""
    done = gpuctl(*words, cwd=cwd)
    assert done.status == 2, f"{words}: {done.status}\n{done.out}\n{done.err}"
    assert "Traceback" not in done.err
    for word in said:
        assert word in done.err, done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("up", "--shape", "VM.GPU.A10.3"), ("VM.GPU.A10.3", "VM.GPU.A10.2")),
        (("up", "--provider", "locl"), ("locl", "local")),
        (("up", "--provider", "local", "--count", "0"), ("0", "1")),
        (("up", "--provider", "local", "--count", "1000000"), ("1000000",)),
        (("up", "--provider", "local", "--count", "two"), ("two",)),
        (("up", "--provider", "local", "--cluster", "a/b"), ("a/b",)),
        (("up", "--provider", "local", "--cluster", "../x"), ("../x",)),
        (("up", "--provider", "local", "--ttl", "soon"), ("--ttl", "soon", "30m")),
        (("up", "--provider", "local", "--disk-gb", "-5"), ("Disk size -5",)),
        (("up", "--provider", "local", "--ssh-cidr", "rubbish"), ("Address range", "rubbish")),
        (("up", "--provider", "local", "--max-cost", "nan"), ("Cost NaN",)),
        (("up", "--provider", "local", "--max-cost", "-1"), ("Cost -1",)),
        (("up", "--provider", "local", "--python", "nonsense"), ("nonsense", "absolute path")),
        (("up", "--provider", "local", "--ttl", "4h"), ("local has no --ttl",)),
        (("up", "--provider", "local", "--spot"), ("local has no --spot",)),
        (("up", "--provider", "local", "--hosts", "hosts.yaml"), ("local has no --hosts",)),
        (("up", "--hosts", "hosts.yaml", "--disk-gb", "50"), ("hosts has no --disk-gb",)),
        (("up", "--hosts", "nothing.yaml"), ("nothing.yaml",)),
        (("up", "-f", "nothing.yaml"), ("nothing.yaml",)),
        (("up",), ("--provider local",)),
        (("train",), ("no cluster", "gpuctl up")),
        (("exec", "--", "true"), ("no cluster",)),
        (("status",), ("no cluster",)),
        (("logs",), ("There is no cluster default", "gpuctl up")),
        (("results", "20990101-000000-aaaa"), ("20990101-000000-aaaa",)),
        (("upp",), ("upp", "up")),
        (("up", "--cuont", "2"), ("--cuont", "--count")),
    ],
)
def test_commands_without_cluster_refuse_bad_options(
    gpuctl: Gpuctl, words: tuple[str, ...], message: tuple[str, ...]
) -> None:
    refused(gpuctl, *words, said=message)
    assert not (gpuctl.home / "clusters").exists() or not list((gpuctl.home / "clusters").iterdir())


def test_commands_with_cluster_refuse_bad_options(cluster: Gpuctl, tmp_path: Path) -> None:
    cluster.script("my.py", "")
    refused(cluster, "train", "mine.py", said=("mine.py",))
    outside = tmp_path.parent / f"{tmp_path.name}-outside.py"
    outside.write_text("")
    refused(cluster, "train", str(outside), said=("outside",))
    refused(cluster, "train", "--nnodes", "3", "my.py", said=("--nnodes 3", "2 nodes"))
    refused(cluster, "train", "--nproc-per-node", "many", "my.py", said=("many",))
    refused(cluster, "train", "--env", "1X=2", "my.py", said=("1X",))
    refused(cluster, "train", "--mode", "torchrum", "my.py", said=("torchrum", "torchrun"))
    refused(cluster, "train", "-m", "my/module", said=("my/module",))
    refused(cluster, "exec", "--rank", "7", "--", "true", said=("7", "default-0", "default-1"))
    (tmp_path / "file").write_text("")
    refused(cluster, "pull", "sets", "file", said=("Nothing can be brought to 'file': File exists.",))


def test_train_checks_built_in_options_before_launching(cluster: Gpuctl) -> None:
    before = cluster.ok("runs", "--json").json["runs"]
    refused(cluster, "train", "--", "--epohcs", "2", said=("--epochs?", "gpuctl train -- --help"))
    refused(cluster, "train", "--", "--model", "resnet81", said=("Did you mean resnet18",))
    refused(cluster, "train", "--dry-run", "--", "--epochs", "x", said=("--epochs: 'x' can't be used",))
    assert cluster.ok("runs", "--json").json["runs"] == before


def test_dry_run_tells_how_the_network_is_divided_or_that_it_can_not_be(cluster: Gpuctl) -> None:
    options = ("--", "--model", "gpt-10m", "--strategy")
    planned = cluster.ok("train", "--dry-run", "--json", *options, "pp")
    first, last = planned.json["division"]["stages"]
    assert (first["ranks"], last["ranks"], last["layers"][-1]) == ([0], [1], "head")
    assert "stage 1 of 2 (rank 0): embedding to block" in planned.err
    output = ("--wrap Blok: the network has no such part",)
    refused(cluster, "train", "--dry-run", *options, "fsdp", "--wrap", "Blok", said=output)
    assert cluster.ok("train", "--dry-run", "--json").json["division"] is None


def test_train_exits_2_when_ranks_reject_an_option(cluster: Gpuctl) -> None:
    done = cluster("train", "--json", "--nnodes", "1", "--", "--model", "cnn", "--stem", "cifar")
    assert (done.status, done.json["status"], done.json["exit_code"]) == (2, "failed", 2)
    assert "--stem is for residual networks" in done.json["first_error"]["message"]


def test_script_that_refuses_options_of_gpuctl_gets_the_line_that_works(cluster: Gpuctl) -> None:
    script = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr')\nparser.parse_args()\n"
    cluster.script("parses.py", script)
    wide = {"COLUMNS": "200"}
    words = ("--nnodes", "1", "--env", "A=b", "parses.py", "--device", "cpu", "--lr", "1", "-y")
    done = cluster("train", *words, env=wide)
    assert done.status == 1
    assert done.err.startswith("note: --device and -y after parses.py went to the script; ")
    [line] = re.findall(r"gpuctl's own options go before the script: (.*)", done.out)
    assert line == "gpuctl train --device cpu -y --nnodes 1 --env A parses.py --lr 1"
    assert line in cluster.ok("results", env=wide).out
    cluster.ok(*shlex.split(line)[1:], env={"A": "b"})


def test_down_of_unknown_cluster_names_existing_clusters(cluster: Gpuctl) -> None:
    done = cluster.ok("down", "--cluster", "defautl")
    assert "There is no cluster defautl in the files here" in done.err
    assert "these clusters exist: default" in done.err


def test_doctor_checks_other_provider_beside_local_cluster(cluster: Gpuctl) -> None:
    done = cluster("doctor", "--shape", "VM.GPU.A10.2", "--json")
    result = {item["what"]: item for item in done.json["findings"]}
    assert "cloud" not in result, "not taken for a cluster of OCI's that lost its files"
    assert "OCI SDK" in result


def test_up_refuses_bad_specs_and_inventories_with_line(gpuctl: Gpuctl) -> None:
    gpuctl.script("twice.yaml", "provider: local\ncount: 2\ncount: 3\n")
    refused(gpuctl, "up", "-f", "twice.yaml", said=("twice.yaml:3", "count"))
    gpuctl.script("typo.yaml", "provider: local\ncuont: 2\n")
    refused(gpuctl, "up", "-f", "typo.yaml", said=("typo.yaml:2", "cuont", "count"))
    gpuctl.script("costly.yaml", "provider: local\nspot: true\n")
    refused(gpuctl, "up", "-f", "costly.yaml", said=("local has no --spot",))
    gpuctl.script("torn.yaml", "provider: [local\n")
    refused(gpuctl, "up", "-f", "torn.yaml", said=("torn.yaml",))
    same = "all:\n  hosts:\n    a:\n      ansible_host: 127.0.0.1\n    a:\n      ansible_host: 127.0.0.2\n"
    gpuctl.script("hosts.yaml", same)
    refused(gpuctl, "up", "--hosts", "hosts.yaml", said=("hosts.yaml:5", "a"))


def test_results_refuses_cut_off_result_file(cluster: Gpuctl) -> None:
    cluster.script("my.py", "print('ran')")
    run = cluster.ok("train", "--nnodes", "1", "--json", "my.py").json["run"]
    path = cluster.run_folder(run) / "result.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(cluster, "results", run, said=("result.json",))
    path.write_bytes(whole)


def test_train_refuses_to_send_large_folder_without_yes(cluster: Gpuctl) -> None:
    cluster.script("my.py", "print('ran')")
    with (cluster.cwd / "weights.bin").open("wb") as file:
        file.truncate(600 * 1000 * 1000)
    refused(cluster, "train", "my.py", said=("too large", "weights.bin", "600.0 MB", "--yes"))
