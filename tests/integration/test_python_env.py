"""Environments on real nodes, built by the real uv out of wheels that are made here: no network at all."""

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from typing import Any
from zipfile import ZipFile

import psutil
import pytest
from support import Gpuctl, wait_for

from inventories.disk.store import Store
from remote.node.__main__ import FAILED
from remote.node.environments import uv_tool
from remote.node.environments.build import conda_program
from remote.python_env import building
from remote.python_env.building import Environment, EnvironmentFailed, ensure, ready_environments
from remote.python_env.requirements import Requirements, key_of, requirements_of
from remote.sessions.connect import connect
from remote.sessions.session import Node
from remote.shared import frames

pytestmark = pytest.mark.slow

SLOW_BUILD = """\
import time
from pathlib import Path

def get_requires_for_build_wheel(config_settings=None):
    return []

def build_wheel(folder, config_settings=None, metadata_directory=None):
    Path({started!r}).touch()
    limit = time.monotonic() + 60
    while not Path({go!r}).exists() and time.monotonic() < limit:
        time.sleep(0.02)
    raise RuntimeError("let go")
"""


@pytest.fixture(scope="session")
def uv_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return uv's own wheel, as pip gets it."""
    folder = tmp_path_factory.mktemp("uv")
    download = [
        "download",
        f"uv=={uv_tool.VERSION}",
        "--no-deps",
        "--only-binary",
        ":all:",
        "-d",
        str(folder),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "-q", *download], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"needs uv {uv_tool.VERSION} from a package index: {done.stderr.strip()[-200:]}")
    [wheel] = folder.glob("uv-*.whl")
    return wheel


def make_wheel(folder: Path, name: str, version: str = "1.0", requires: str = "", code: str = "") -> Path:
    """A package of one module."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        f"{name}.py": code or f"VERSION = {version!r}\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        # Without digests, which are optional; the code is in it so that another content is another RECORD.
        record = "".join(f"{file},,{len(text)}\n" for file, text in files.items())
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


@pytest.fixture
def wheels(tmp_path: Path, uv_wheel: Path) -> Path:
    """A folder of wheels: `tiny`, which needs `small`; a `torch` of one line; and uv."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    os.link(uv_wheel, folder / uv_wheel.name)
    make_wheel(folder, "small", "2.0")
    make_wheel(folder, "tiny", requires="small>=1")
    make_wheel(folder, "torch", "2.99.0+none")
    return folder


@pytest.fixture
def nodes(two_hosts: Gpuctl) -> Iterator[list[Node]]:
    """Yield connections to two fresh hosts with separate homes."""
    folder = Store(two_hosts.home).cluster("default")
    opened = [connect(replace(m, python=None), folder) for m in folder.load().machines]
    yield opened
    for node in opened:
        node.close()


def home_of(node: Node) -> Path:
    return Path(node.run('printf %s "$HOME"').stdout.decode())


class Said(list[str]):
    """Collect the lines passed to `say`."""

    def __call__(self, text: str) -> None:
        self.append(text)


def build(node: Node, wish: Requirements, said: Said, **more: Any) -> Environment:
    return ensure(node, wish, **{"facts_of_env": None, "backend": "cpu", "say": said, **more})


def named(*packages: str, wheels: Path, root: Path) -> Requirements:
    result = requirements_of(root, pip=packages, wheels=wheels)
    assert result is not None
    return result


def tree_times(root: Path) -> dict[Path, int]:
    """When each file below was last written, but for the note of when it was last used."""
    return {
        path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file() and path.name != "used"
    }


@pytest.mark.whole
def test_environment_is_built_once_and_reused(nodes: list[Node], wheels: Path, tmp_path: Path) -> None:
    node, output = nodes[0], Said()
    wish = named("tiny", "torch", wheels=wheels, root=tmp_path)
    made = build(node, wish, output)
    assert made.built
    assert made.packages == ("small==2.0", "tiny==1.0", "torch==2.99.0+none")
    assert made.torch == "2.99.0+none"
    assert made.size_bytes > 0
    assert made.python.startswith(str(home_of(node) / ".gpuctl-node" / "envs"))
    assert any(text.startswith(f"{node.name}: 4 wheels sent") for text in output)
    assert any("Installed 3 packages" in text for text in output)
    shown = node.run(f"{made.python} -c 'import tiny, small; print(small.VERSION)'")
    assert shown.stdout.decode().strip() == "2.0"
    version = node.run(f"{made.python} -c 'import platform; print(platform.python_version())'")
    assert made.python_version == version.stdout.decode().strip()
    listed = ready_environments(node)[made.key]
    assert listed == (made.python, made.torch, made.python_version, made.packages)

    output.clear()
    written = tree_times(home_of(node) / ".gpuctl-node")
    again = build(node, wish, output)
    assert again == replace(made, built=False)
    assert output == []
    assert tree_times(home_of(node) / ".gpuctl-node") == written, "nothing was done"

    facts = {
        "key": made.key,
        "ready": {**vars(made), "packages": list(made.packages), "bytes": made.size_bytes},
    }
    node.close()
    assert build(node, wish, output, facts_of_env=facts) == again, "with facts there is nothing to ask"


def test_changed_requirements_or_wheel_build_new_environment(
    nodes: list[Node], wheels: Path, tmp_path: Path
) -> None:
    node = nodes[0]
    (tmp_path / "requirements.txt").write_text("small\n")
    first = requirements_of(tmp_path, wheels=wheels)
    (tmp_path / "requirements.txt").write_text("small\ntiny\n")
    second = requirements_of(tmp_path, wheels=wheels)
    assert first is not None
    assert second is not None
    item, two = build(node, first, Said()), build(node, second, Said())
    assert item.python != two.python
    assert (item.packages, two.packages) == (("small==2.0",), ("small==2.0", "tiny==1.0"))
    make_wheel(wheels, "small", "2.0", code="VERSION = 'another, of the same name'\n")
    third = requirements_of(tmp_path, wheels=wheels)
    assert third is not None
    made = build(node, third, Said())
    shown = node.run(f"{made.python} -c 'import small; print(small.VERSION)'").stdout.decode()
    assert shown.strip() == "another, of the same name"


def test_train_warns_of_environments_that_differ_between_nodes(two_hosts: Gpuctl, wheels: Path) -> None:
    two_hosts.script("script.py", "")
    words = ("train", "--pip", "tiny", "--pip", "torch", "--wheels", str(wheels), "script.py")
    first = two_hosts(*words).err
    assert first.count("environment of --pip: built in") == 2
    assert "its environment is not the one of" not in first
    # As if the second node had queried an index at another time.
    folder = Store(two_hosts.home).cluster("default")
    node = connect(folder.load().machines[1], folder)
    try:
        (record,) = (home_of(node) / ".gpuctl-node" / "envs").glob("*/ready.json")
    finally:
        node.close()
    record.write_text(record.read_text().replace("small==2.0", "small==2.1"))
    again = two_hosts(*words).err
    assert "default-1: its environment is not the one of default-0: small 2.1 (2.0 there). Fix: " in again


def test_environment_follows_pyproject_or_lock_file(
    nodes: list[Node], wheels: Path, tmp_path: Path, uv_wheel: Path
) -> None:
    project = tmp_path / "locked"
    project.mkdir()
    toml = '[project]\nname = "mine"\nversion = "0"\nrequires-python = ">=3.10"\ndependencies = ["small"]\n'
    (project / "pyproject.toml").write_text(toml)
    wish = requirements_of(project, wheels=wheels)
    assert wish is not None
    assert build(nodes[0], wish, Said()).packages == ("small==2.0",)
    uv = uv_tool.unpack(uv_wheel, tmp_path / "bin" / "uv")
    lock = [uv, "lock", "--no-index", "--find-links", str(wheels), "--cache-dir", str(tmp_path / "cache")]
    subprocess.run(lock, cwd=project, check=True, capture_output=True)
    make_wheel(wheels, "small", "3.0")
    locked = requirements_of(project, wheels=wheels)
    assert locked.kind == "lock"
    assert build(nodes[0], locked, Said()).packages == ("small==2.0",), (
        "as locked, though there is a newer one"
    )
    file = wheels / "small-2.0-py3-none-any.whl"
    pylock = tmp_path / "pylock.toml"
    pylock.write_text(
        'lock-version = "1.0"\ncreated-by = "hand"\n[[packages]]\nname = "small"\nversion = "2.0"\n'
        f'wheels = [{{ url = "{file.as_uri()}", '
        f'hashes = {{ sha256 = "{hashlib.sha256(file.read_bytes()).hexdigest()}" }} }}]\n'
    )
    of_any_tool = requirements_of(project, requirements=pylock)
    assert of_any_tool is not None
    assert build(nodes[0], of_any_tool, Said()).packages == ("small==2.0",)


def test_unsatisfiable_requirement_is_reported_with_advice(
    nodes: list[Node], wheels: Path, tmp_path: Path
) -> None:
    with pytest.raises(EnvironmentFailed) as caught:
        build(nodes[1], named("tiny>=7", "gone==1.2", "torch", wheels=wheels, root=tmp_path), Said())
    text = " ".join(str(caught.value).split())
    assert text.startswith("default-1: the environment for --pip could not be built (uv pip install):")
    assert f"Missing in {wheels}: gone==1.2 and tiny>=7. Where there is internet access" in text
    version = "{}.{}.{}".format(*sys.version_info[:3])
    assert (
        f"pip download -d {wheels} --find-links {wheels} --only-binary :all: --python-version {version}"
        in text
    )
    assert text.endswith("gone==1.2 'tiny>=7'")


def test_missing_uv_is_reported_with_advice(
    nodes: list[Node], wheels: Path, tmp_path: Path, uv_wheel: Path
) -> None:
    if uv_tool.installed():
        pytest.skip("needs a machine without uv on its PATH")
    (wheels / uv_wheel.name).unlink()
    with pytest.raises(
        EnvironmentFailed,
        match=r"Missing in .*: uv==[\d.]+\. Where there is internet access, .*\n *pip download",
    ):
        build(nodes[0], named("tiny", wheels=wheels, root=tmp_path), Said())


def slow(tmp_path: Path, wheels: Path) -> tuple[Requirements, Path, Path]:
    """Yield requirements whose build blocks until released and then fails."""
    started, go = tmp_path / "started", tmp_path / "go"
    source = tmp_path / "slow-1.0"
    source.mkdir()
    (source / "backend.py").write_text(SLOW_BUILD.format(started=str(started), go=str(go)))
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "slow"\nversion = "1.0"\n'
    )
    wish = Requirements(
        source="test", kind="requirements", files=(("requirements.txt", f"slow @ file://{source}\n"),),
        wheels=named("tiny", wheels=wheels, root=tmp_path).wheels, wheels_folder=wheels,
    )  # fmt: skip
    return wish, started, go


def processes_in(folder: Path) -> list[psutil.Process]:
    """Live processes that work in a folder or run a program in it."""
    result = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join([process.cwd(), *process.cmdline()]) and process.status() != "zombie":
                result.append(process)
        except psutil.Error:
            continue
    return result


@pytest.mark.parametrize("manner", ["the connection ends", "the node's part is killed"])
def test_interrupted_build_leaves_no_process_and_next_recovers(
    nodes: list[Node], wheels: Path, tmp_path: Path, manner: str
) -> None:
    node, other = nodes
    wish, started, _go = slow(tmp_path, wheels)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            build(node, wish, Said())
        except Exception as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    thread = Thread(target=work)
    thread.start()
    # The same interpreter runs the node's part, on the same machine.
    place = "{}-{}-py{}-{}".format(key_of(wish, "cpu"), platform.machine(), *sys.version_info[:2])
    home = home_of(node) / ".gpuctl-node" / "envs" / place
    wait_for(lambda: started.exists() or errors, what="the build's start")
    assert errors == []
    assert [p for p in processes_in(home) if p.name() == "uv"]
    if manner == "the connection ends":
        node.close()
    else:
        [uv] = [p for p in processes_in(home) if p.name() == "uv"]
        parent = uv.parent()
        parent.send_signal(signal.SIGKILL)
    thread.join(30)
    assert len(errors) == 1
    if manner == "the node's part is killed":
        wait_for(
            lambda: not [p for p in processes_in(home) if p.name() == "uv"], what="uv's end", deadline_s=15
        )
        for left in processes_in(tmp_path / "slow-1.0"):
            left.kill()  # uv ends with its parent; the build that uv started does not
    wait_for(lambda: not processes_in(home), what="the build's end", deadline_s=15)
    wait_for(
        lambda: not processes_in(tmp_path / "slow-1.0"), what="the end of what uv started", deadline_s=15
    )
    assert home.exists()
    assert not (home / "ready.json").exists()

    shutil.rmtree(tmp_path / "slow-1.0")
    again = connect(node.machine, Store(tmp_path / "home").cluster("default"))
    try:
        output = Said()
        with pytest.raises(EnvironmentFailed):
            build(again, wish, output)
        assert any("removing an environment that was not finished" in text for text in output)
        made = build(again, named("tiny", wheels=wheels, root=tmp_path), Said())
        assert made.built
    finally:
        again.close()
    assert other.run("true").exit_code == 0


def test_environment_build_ends_when_stdin_closes(wheels: Path, uv_wheel: Path, tmp_path: Path) -> None:
    """OpenSSH's server sends no signal but closes the pipes. The user's own uv is used here."""
    home = tmp_path / "node"
    uv_tool.unpack(uv_wheel, home / ".local" / "bin" / "uv")
    wish, started, _go = slow(tmp_path, wheels)
    wish = replace(wish, wheels=(), wheels_folder=None)
    script = "from remote.node.__main__ import run; run(['environment'])"
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    with subprocess.Popen(
        [sys.executable, "-B", "-c", script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as part:
        part.stdin.write(frames.encode(building.request(wish, None)))
        part.stdin.flush()
        wait_for(started.exists, what="the build's start")
        part.stdin.close()
        assert part.wait(timeout=15) == FAILED
    wait_for(
        lambda: not processes_in(tmp_path / "slow-1.0"), what="the end of what uv started", deadline_s=15
    )


def test_concurrent_builds_build_environment_once(nodes: list[Node], wheels: Path, tmp_path: Path) -> None:
    """Two commands, and so two connections; or two nodes that share a home."""
    wish = named("tiny", wheels=wheels, root=tmp_path)
    cluster = Store(tmp_path / "home").cluster("default")
    both = [connect(nodes[0].machine, cluster) for _ in range(2)]
    made: list[Environment] = []
    threads = [Thread(target=lambda n=node: made.append(build(n, wish, Said()))) for node in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for node in both:
        node.close()
    assert sorted(item.built for item in made) == [False, True]
    assert len({item.python for item in made}) == 1


def test_concurrent_build_reports_waiting_for_the_first(
    nodes: list[Node], wheels: Path, tmp_path: Path
) -> None:
    node = nodes[0]
    wish, started, go = slow(tmp_path, wheels)
    output = [Said(), Said()]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            build(node, wish, output[number])
        except EnvironmentFailed as error:
            errors.append(error)

    threads = [Thread(target=work, args=(number,)) for number in (0, 1)]
    threads[0].start()
    wait_for(started.exists, what="the build's start")
    threads[1].start()
    wait_for(
        lambda: any("waiting for the same build by" in text for text in output[1]), what="the second's word"
    )
    go.touch()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 2
    assert all("let go" in str(error) for error in errors)


MICROMAMBA = """\
#!/bin/sh
# As `micromamba create --yes --prefix VENV --file FILE`: what it makes finds what this Python has.
grep -q pytorch "$6" && {python} -m venv --without-pip "$4" || exit 1
cd "$4"/lib/python3*/site-packages && mkdir torch-{torch}.dist-info
echo "import site; site.addsitedir('{packages}')" > packages.pth
"""


@pytest.mark.skipif(conda_program() is not None, reason="needs a machine without conda")
def test_train_makes_environment_of_condas_file_with_the_program_that_is_there(two_hosts: Gpuctl) -> None:
    two_hosts.script("environment.yml", "name: mine\ndependencies:\n  - pytorch\n")
    two_hosts.script("s.py", "import sys, torch\nprint('prefix', sys.prefix, flush=True)\n")
    refused = two_hosts("train", "--requirements", "environment.yml", "s.py")
    assert refused.status == 2
    assert "none of micromamba, pixi, mamba and conda is on this node" in refused.err
    folder = Store(two_hosts.home).cluster("default")
    text = MICROMAMBA.format(
        python=sys.executable, torch=version("torch"), packages=sysconfig.get_path("purelib")
    )
    for machine in folder.load().machines:
        node = connect(machine, folder)
        program = home_of(node) / ".local" / "bin" / "micromamba"
        node.close()
        program.parent.mkdir(parents=True)
        program.write_text(text)
        program.chmod(0o700)
    done = two_hosts.ok("train", "--json", "--requirements", "environment.yml", "s.py")
    assert done.err.count("environment of environment.yml: built in") == 2
    log = (two_hosts.run_folder(done.json["run"]) / "logs" / "rank-1.log").read_text()
    assert "prefix" in log
    assert "/.gpuctl-node/envs/" in log
