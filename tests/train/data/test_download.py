"""Download once a machine, whole or not at all, or with an error message.

The download is torchvision's. Its mirrors are set to a server on loopback, and its digests to the small files there.
"""

import contextlib
import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from gzip import compress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from filelock import FileLock
from image_files import CIFAR_BATCHES, cifar10, mnist

from train.data.download import SILENCE_S, data_folder, ensure_downloaded
from train.errors import MissingData
from train.options import Options

pytestmark = pytest.mark.slow

RANK = """
import json, sys
from train.data.load import load_dataset
from train.distributed.environment import DistributedEnvironment
from train.errors import TrainError
from train.options import Options
from train.torchvision_import import import_torchvision

names, folder, mirror = sys.argv[1].split(","), sys.argv[2], json.loads(sys.argv[3])
if mirror:
    datasets = import_torchvision().datasets
    datasets.MNIST.mirrors = [mirror["url"]]
    datasets.MNIST.resources = mirror["mnist"]
    datasets.CIFAR10.url = mirror["url"] + "cifar-10-python.tar.gz"
    datasets.CIFAR10.tgz_md5 = mirror["tgz"]
    datasets.CIFAR10.train_list = mirror["cifar10"][:5]
    datasets.CIFAR10.test_list = mirror["cifar10"][5:6]
    datasets.CIFAR10.meta = {"filename": "batches.meta", "key": "label_names", "md5": mirror["cifar10"][6][1]}
print("ready", flush=True)
sys.stdin.readline()
for name in names:
    try:
        dataset = load_dataset(Options(dataset=name, data_dir=folder), DistributedEnvironment())
        print(name, int(dataset.training.inputs.long().sum()), len(dataset.validation.labels), flush=True)
    except TrainError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def archive() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, file in cifar10().items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(file)
            tar.addfile(member, io.BytesIO(file))
    return content.getvalue()


@dataclass
class Mirror:
    url: str
    files: dict[str, bytes]
    requests: Counter[str] = field(default_factory=Counter)
    stalls_at: str | None = None
    """Of this file only the first half is sent, and then nothing."""
    stalled: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)

    @property
    def described(self) -> str:
        batches = cifar10()
        return json.dumps({
            "url": self.url,
            "mnist": [(name, md5(content)) for name, content in self.files.items() if name.endswith("ubyte.gz")],
            "tgz": md5(self.files["cifar-10-python.tar.gz"]),
            "cifar10": [(name, md5(batches[name])) for name in [*CIFAR_BATCHES, "batches.meta"]],
        })  # fmt: skip


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/")
            content = mirror.files[name]
            mirror.requests[name] += 1
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                if name == mirror.stalls_at:
                    self.wfile.write(content[: len(content) // 2])
                    mirror.stalled.set()
                    mirror.closed.wait(60)
                else:
                    self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    files = {f"{name}.gz": compress(content) for name, content in mnist().items()}
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        mirror = Mirror(
            f"http://127.0.0.1:{server.server_address[1]}/", {**files, "cifar-10-python.tar.gz": archive()}
        )
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield mirror
        mirror.closed.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Yield a function that starts a process, which loads a dataset for each line; all end with the test."""
    with contextlib.ExitStack() as stack:

        def started(names: str, mirror: str = "null", **environ: str) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", RANK, names, str(tmp_path / "data"), mirror],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                    env=os.environ | environ,
                )
            )  # fmt: skip
            stack.callback(process.kill)
            return process

        yield started


def ready(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    return process


def output(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate("\n", timeout=90)
    assert process.returncode == 0, err
    return out.splitlines()


MNIST = f"mnist {sum(mnist()['train-images-idx3-ubyte'][16:])} 20"


def test_download_by_several_ranks_happens_once(rank, mirror, tmp_path):
    processes = [rank("mnist,cifar10", mirror.described) for _ in range(3)]
    for process in map(ready, processes):
        process.stdin.write("\n")
    for process in processes:
        process.stdin.flush()
    outputs = [output(process) for process in processes]
    messages = [line for lines in outputs for line in lines if line.startswith("downloading")]
    assert sorted(messages) == [
        f"downloading {name} to {tmp_path}/data, once on this machine" for name in ("cifar10", "mnist")
    ]
    loaded = [[line for line in lines if not line.startswith("downloading")] for lines in outputs]
    assert loaded[0] == loaded[1] == loaded[2]
    assert loaded[0][0] == MNIST
    assert loaded[0][1].startswith("cifar10 ")
    # torchvision asks twice for each file, the first time to be redirected.
    assert mirror.requests == dict.fromkeys(mirror.files, 2)
    assert not list((tmp_path / "data").glob(".*.part"))


def test_download_of_a_killed_rank_is_repeated(rank, mirror, tmp_path):
    mirror.stalls_at = "t10k-labels-idx1-ubyte.gz"
    first = ready(rank("mnist", mirror.described))
    first.stdin.write("\n")
    first.stdin.flush()
    assert mirror.stalled.wait(60)
    second = ready(rank("mnist", mirror.described))
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    assert not (tmp_path / "data/MNIST").exists()
    mirror.stalls_at = None
    assert output(second)[-1] == MNIST
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [".mnist.lock", "MNIST"]


def test_download_of_a_wrong_file_is_refused_and_not_kept(rank, mirror, tmp_path):
    described = mirror.described
    mirror.files["t10k-labels-idx1-ubyte.gz"] = compress(b"<html>Log in to this network</html>")
    sentence = output(rank("mnist", described))[-1]
    assert sentence == (
        f"MissingData: mnist is not in {tmp_path}/data on this machine, and could not be downloaded (File not found "
        "or corrupted). Put these files there: MNIST/raw/train-images-idx3-ubyte, MNIST/raw/train-labels-idx1-ubyte, "
        "MNIST/raw/t10k-images-idx3-ubyte, MNIST/raw/t10k-labels-idx1-ubyte."
    )
    assert [path.name for path in (tmp_path / "data").iterdir()] == [".mnist.lock"]


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address on loopback at which nothing answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_download_offline_names_the_files_to_provide(rank, nowhere, tmp_path):
    for name, line in zip(
        ("mnist", "cifar10"),
        [
            line
            for line in output(rank("mnist,cifar10", http_proxy=nowhere, https_proxy=nowhere))
            if line.startswith("MissingData")
        ],
        strict=True,
    ):
        assert line.startswith(
            f"MissingData: {name} is not in {tmp_path}/data on this machine, and could not be downloaded (<urlopen "
            "error [Errno"
        )
        assert "Connection refused>). Put these files there: " in line


def missing(folder: Path) -> list[str]:
    return [] if (folder / "a/file").exists() else ["a/file"]


def download(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a/file").write_text("whole")
    (folder / "an archive").write_text("")


def test_ensure_downloaded_keeps_only_the_files_of_the_dataset(tmp_path, capsys):
    ensure_downloaded("x", tmp_path / "new/data", missing=missing, download=download, allowed=True)
    assert (tmp_path / "new/data/a/file").read_text() == "whole"
    assert sorted(path.name for path in (tmp_path / "new/data").iterdir()) == [".x.lock", "a"]


def test_ensure_downloaded_of_existing_files_needs_no_lock_or_download(tmp_path):
    download(tmp_path)
    before = sorted(tmp_path.iterdir())
    with FileLock(tmp_path / ".x.lock"):
        ensure_downloaded("x", tmp_path, missing=missing, download=pytest.fail, allowed=False, wait_s=0)
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / ".x.lock"])


def test_ensure_downloaded_times_out_waiting_for_the_lock(tmp_path):
    with (
        FileLock(tmp_path / ".x.lock"),
        pytest.raises(
            MissingData, match=r"Waited 0\.2 s for another process .* holds .*\.x\.lock\. If it hangs"
        ),
    ):
        ensure_downloaded("x", tmp_path, missing=missing, download=pytest.fail, allowed=True, wait_s=0.2)


def test_ensure_downloaded_sets_and_restores_the_socket_timeout(tmp_path, capsys):
    limits = []

    def ask(folder: Path) -> None:
        limits.append(socket.getdefaulttimeout())
        raise TimeoutError("timed out")

    with pytest.raises(MissingData, match=r"and could not be downloaded \(timed out\)"):
        ensure_downloaded("x", tmp_path, missing=missing, download=ask, allowed=True)
    assert limits == [SILENCE_S]
    assert socket.getdefaulttimeout() is None


def test_ensure_downloaded_reports_a_folder_it_cannot_make(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MissingData, match="Not a directory"):
        ensure_downloaded("x", tmp_path / "file/data", missing=missing, download=download, allowed=True)


def test_data_folder_comes_from_option_then_variable_then_cache():
    home = Path.home()
    assert data_folder(Options(), {}) == home / ".cache/gpuctl/data"
    assert data_folder(Options(), {"GPUCTL_DATA_DIR": "/data"}) == Path("/data")
    assert data_folder(Options(), {"GPUCTL_DATA_DIR": ""}) == home / ".cache/gpuctl/data"
    assert data_folder(Options(data_dir="~/x"), {"GPUCTL_DATA_DIR": "/data"}) == home / "x"
