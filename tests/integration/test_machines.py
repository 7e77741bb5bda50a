"""The machines themselves: exec, ssh, push, pull; and nothing a node sends gets out of its folder."""

import shutil
import subprocess
from pathlib import Path

import pytest
from support import Gpuctl

pytestmark = pytest.mark.slow


def test_exec_runs_on_all_nodes_or_the_chosen_one(cluster: Gpuctl) -> None:
    done = cluster("exec", "--", "echo $HOME; echo oops >&2; exit 4")
    assert done.status == 1
    assert "default-0: " in done.out
    assert "default-1: oops" in done.err
    nodes = cluster("exec", "--json", "--rank", "1", "--", "printf", "%s|", "a b", "$HOME").json["nodes"]
    assert nodes == [{"node": "default-1", "rank": 1, "exit_code": 0, "stdout": "a b|$HOME|", "stderr": ""}]
    long = cluster.ok(
        "exec", "--rank", "default-1", "--", "head -c 30000 /dev/zero | tr '\\0' x; printf '1\\r2'"
    )
    assert long.out == "x" * 30_000 + "1\n2\n", "all of it; text mode reads a carriage return as a line's end"
    for name, hint in (("7", "0 (default-0), 1 (default-1)"), ("default-7", "did you mean 'default-0'?")):
        unknown = cluster("exec", "--rank", name, "--", "true")
        assert unknown.status == 2
        assert hint in unknown.err


def test_ssh_works_directly_and_with_printed_ssh_config(cluster: Gpuctl) -> None:
    assert cluster.ok("ssh", "1", "--", "printf", "%s\\n", "a b").out == "a b\n"
    assert cluster("ssh", "0", "exit 7").status == 7
    assert "default-1" in cluster.ok("ssh", "default-1", "pwd").out
    refused = cluster("ssh", "--json", "0", "true")
    assert (refused.status, "exec --json" in refused.err) == (2, True)
    config = cluster.cwd / "config"
    config.write_text(cluster.ok("ssh-config").out)
    plain = subprocess.run(
        ["ssh", "-F", str(config), "default-1", "pwd"],
        capture_output=True,
        text=True,
        check=True,
        env=cluster.env,
    )
    assert "default-1" in plain.stdout


def test_push_and_pull_copy_folders_and_files(cluster: Gpuctl) -> None:
    for name in ("a.txt", "deep/er/b.bin"):
        cluster.script(f"data/{name}", name * 100_000)
    sent = cluster.ok("push", "--json", "data", "~/sets").json["nodes"]
    assert [node["files"] for node in sent] == [2, 2]
    assert [node["files"] for node in cluster.ok("push", "--json", "data", "~/sets").json["nodes"]] == [0, 0]
    cluster.ok("pull", "~/sets/data", "back")
    for node in ("default-0", "default-1"):
        assert (cluster.cwd / "back" / node / "deep/er/b.bin").read_text() == "deep/er/b.bin" * 100_000
    cluster.ok("pull", "--rank", "0", "~/sets/data/a.txt", ".")
    assert (cluster.cwd / "a.txt").read_text() == "a.txt" * 100_000
    (cluster.cwd / "back/default-1/a.txt").write_text("mine")
    refused = cluster("pull", "~/sets/data", "back")
    assert refused.status == 2
    assert "back/default-1/a.txt exists on this computer with other content" in refused.err
    assert "gpuctl pull --yes '~/sets/data' back" in refused.err
    assert (cluster.cwd / "back/default-1/a.txt").read_text() == "mine"
    done = cluster.ok("pull", "--json", "--yes", "~/sets/data", "back")
    assert [(node["files"], node["replaced"]) for node in done.json["nodes"]] == [(2, 0), (2, 1)]
    assert "default-1: 2 files" in done.err and "1 file of other content replaced" in done.err
    missing = cluster("pull", "~/nowhere", ".")
    assert missing.status == 1
    assert "no such file" in missing.err


def test_push_into_project_puts_files_where_scripts_find_them(cluster: Gpuctl) -> None:
    folder = cluster.cwd / "repository" / "apps"
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(folder.parent)], check=True)
    for name, text in (("data/x.txt", "pushed"), (".gitignore", "data/\n")):
        path = folder.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (cluster.cwd / "elsewhere").mkdir()
    (cluster.cwd / "elsewhere" / "y.txt").write_text(" and linked")
    (folder / "linked").symlink_to(cluster.cwd / "elsewhere")
    (folder / "my.py").write_text("print(open('../data/x.txt').read() + open('linked/y.txt').read())")
    cluster.ok("push", "--into-project", "../data", cwd=folder)
    report = " ".join(cluster("train", "my.py", cwd=folder).err.split())
    assert "Bring what it leads to: gpuctl push --into-project linked" in report
    cluster.ok("push", "--into-project", "linked", cwd=folder)
    assert "pushed and linked" in cluster.ok("train", "my.py", cwd=folder).err, "a sync leaves it alone"
    assert "pushed and linked" in cluster.ok("train", "--fresh", "my.py", cwd=folder).err, "no run wrote it"
    assert "is no part of the project" in cluster("push", "--into-project", "/etc/hosts", cwd=folder).err
    assert "leave out the destination" in cluster("push", "--into-project", "my.py", "x", cwd=folder).err


def test_push_reports_sent_and_skipped_files(cluster: Gpuctl) -> None:
    cluster.script("all/.gitignore", "*.bin\n")
    cluster.script("all/ignored.bin", "sent all the same")
    (cluster.cwd / "all" / "out").symlink_to("/etc")
    home = str(Path.home())
    first = cluster.ok("push", "all", f"{home}/says")
    assert "2 files sent" in first.err
    assert "out is not sent" in first.err
    assert "default-0: up to date, 2 files" in cluster.ok("push", "all", "says").err
    cluster.ok("pull", "--rank", "default-0", f"{home}/says/all", "back")
    assert (cluster.cwd / "back" / "ignored.bin").read_text() == "sent all the same"
    cluster.script("empty/a/.ssh/id", "secret")
    nothing = cluster("push", "empty", "says")
    assert nothing.status == 2
    assert "nothing to send" in nothing.err


def test_hostile_artifacts_stay_in_the_runs_folder(cluster: Gpuctl) -> None:
    victim = cluster.cwd / "victim"
    victim.write_text("safe")
    text = f"""
import os
from pathlib import Path
artifacts = Path(os.environ["GPUCTL_RUN_DIR"], "artifacts")
(artifacts / "good.txt").write_text("good")
(artifacts / "..%2f..%2fx").write_text("odd but plain")
(artifacts / "back\\\\slash").write_text("plain, too")
os.symlink({str(victim)!r}, artifacts / "link")
os.symlink("/", artifacts / "root")
os.mkfifo(artifacts / "pipe")
(artifacts / "folder").mkdir()
(artifacts / "folder" / "new\\nline").write_text("newline")
"""
    cluster.script("hostile.py", text)
    done = cluster("train", "--nnodes", "1", "--json", "hostile.py", timeout_s=60)
    folder = cluster.run_folder(cluster.ok("results", "--json").json["runs"][0]["run"])
    result = sorted(
        path.relative_to(folder / "artifacts").as_posix() for path in (folder / "artifacts").rglob("*")
    )
    assert "good.txt" in result
    assert all(not path.is_symlink() for path in folder.rglob("*"))
    assert "link" in done.err
    assert "pipe" in done.err
    assert victim.read_text() == "safe"
    assert not (folder.parent / "x").exists()


def test_train_writes_secret_to_no_file_or_command_line(cluster: Gpuctl) -> None:
    secret = "correct-horse-battery"
    cluster.script(
        "secret.py",
        "import os, psutil\n"
        "assert os.environ['TOKEN'].startswith('correct')\n"
        "words = []\n"
        "for process in psutil.process_iter(['cmdline']):\n"
        "    words += process.info['cmdline'] or []\n"
        "print('argv clean:', not any('correct-horse' in word for word in words))\n",
    )
    done = cluster.ok(
        "train", "--nnodes", "1", "--json", "--verbose", "--env", "TOKEN", "secret.py", env={"TOKEN": secret}
    )
    folder = cluster.run_folder(done.json["run"])
    assert (folder / "logs" / "rank-0.log").read_text() == "argv clean: True\n"
    assert secret not in done.out + done.err
    key = (cluster.home / "clusters/default/keys/id_ed25519").read_text().splitlines()[-3]
    for path in cluster.home.rglob("*"):
        if path.is_file() and "home/.gpuctl-node" not in str(path) and path.name != "id_ed25519":
            text = path.read_bytes()
            assert secret.encode() not in text, path
            assert key.encode() not in text, path


def test_reap_ends_local_hosts_that_outlived_the_files_of_their_cluster(gpuctl: Gpuctl) -> None:
    name = "left-behind"
    gpuctl.ok("up", "--provider", "local", "--count", "2", "--cluster", name)
    none = gpuctl("reap", "--provider", "local", name, "--yes")
    assert (none.status, f"gpuctl down --cluster {name}" in none.err) == (2, True)
    shutil.rmtree(gpuctl.home)
    listed = gpuctl.ok("reap", "--provider", "local", name, "--dry-run", "--json").json
    (row,) = (row for row in listed["clusters"] if row["chosen"])
    assert (len(row["machines"]), listed["removed"]) == (2, [])
    assert gpuctl.ok("reap", "--provider", "local", name, "--yes", "--json").json["removed"] == [row["id"]]
    left = gpuctl.ok("reap", "--provider", "local", "--dry-run", "--json").json["clusters"]
    assert row["id"] not in [other["id"] for other in left]
