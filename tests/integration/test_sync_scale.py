"""Code sync with many bytes: with the system's rsync and without, interrupted anywhere, in little memory."""

import filecmp
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support import Gpuctl, wait_for

from inventories.ansible.inventory import read_inventory
from inventories.disk.store import ClusterFolder
from remote.errors import RemoteError
from remote.files import rsync
from remote.files import sync as syncing
from remote.files.tree import Tree, read_tree
from remote.sessions import connect
from remote.sessions.session import Node

pytestmark = pytest.mark.slow
needs_rsync = pytest.mark.skipif(
    not rsync.usable(), reason="needs ssh and rsync 3.1 or newer on this computer"
)
LARGE = ("big.bin", "-dash", "with space/b 'c' \"d\"", "new\nline", "späße/ö", "[x]*?", "#hash", ";semicolon")
FILES = 4 + len(LARGE) + 1
CLIENT = """
import sys
from pathlib import Path
from inventories.ansible.inventory import read_inventory
from inventories.disk.store import ClusterFolder
from remote.sessions import connect
from remote.files import sync
from remote.files import tree
folder, project, destination, config = (Path(word) for word in sys.argv[1:])
machine = read_inventory(folder / "inventory.yaml").machines[0]
node = connect.connect(machine, ClusterFolder(folder))
node.transport.ssh_config = config if config.is_file() else None
done = sync.sync(node, tree.read_tree(project, allow_large=True), str(destination))
if sys.platform == "linux":
    print(Path("/proc/self/status").read_text())
"""


@pytest.fixture
def folder(cluster: Gpuctl) -> Path:
    """The folder of a cluster of local hosts."""
    return cluster.home / "clusters" / "default"


@pytest.fixture
def node(folder: Path) -> Iterator[Node]:
    machine = read_inventory(folder / "inventory.yaml").machines[0]
    node = connect.connect(machine, ClusterFolder(folder))
    yield node
    node.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Create a project with awkward files: many small ones, and some large enough for rsync."""
    root = tmp_path / "project it's"
    for name in ("a.py", "with space/b.txt", "späße/ü.txt", "empty"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if name == "empty" else name)
    for name in LARGE:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(syncing.RSYNC_FILE_BYTES))
    with (root / "big.bin").open("ab") as file:
        file.truncate(syncing.RSYNC_FROM_BYTES)
    (root / "a.py").chmod(0o755)
    (root / "-dash").chmod(0o444)
    (root / "link").symlink_to("späße/ü.txt")
    os.utime(root / "a.py", ns=(1, 1_234_567_890_123_456_789))
    return root


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The folder on the node: the nodes of a local cluster have this computer's files."""
    return tmp_path / "th'ere on it"


def check(project: Path, there: Path) -> None:
    """Check that the folder holds the tree (kinds, bytes, modes, times to the ns) and no temporary files."""
    local, copied = read_tree(project), read_tree(there)
    assert [(name, entry[:3]) for name, entry in copied.entries.items()] == [
        (name, entry[:3]) for name, entry in local.entries.items()
    ]
    for name in local.entries:
        if not (project / name).is_symlink():
            assert filecmp.cmp(there / name, project / name, shallow=False), name
    assert not list(there.glob(".gpuctl*"))


def tree_of(project: Path) -> Tree:
    return read_tree(project, allow_large=True)


@needs_rsync
def test_sync_sends_large_files_by_rsync(node: Node, folder: Path, project: Path, there: Path) -> None:
    first = syncing.sync(node, tree_of(project), str(there))
    assert (first.files, first.rsync_files) == (FILES, len(LARGE))
    check(project, there)
    assert syncing.sync(node, tree_of(project), str(there)).files == 0
    for name in LARGE:
        # Same size, same second: rsync with default options would consider the file unchanged.
        times = (project / name).stat()
        (project / name).chmod(0o644)
        (project / name).write_bytes(os.urandom(times.st_size))
        os.utime(project / name, ns=(times.st_atime_ns, times.st_mtime_ns ^ 1))
    (project / "a.py").unlink()
    (there / "of a run").write_text("stays")
    again = syncing.sync(node, tree_of(project), str(there))
    assert (again.files, again.rsync_files, again.removed) == (len(LARGE), len(LARGE), 1)
    assert (there / "of a run").read_text() == "stays"
    (there / "of a run").unlink()
    check(project, there)


@needs_rsync
def test_push_by_rsync_follows_links_to_folders_only(
    node: Node, folder: Path, project: Path, there: Path, tmp_path: Path
) -> None:
    real = tmp_path / "real"
    real.mkdir()
    there.mkdir()
    (there / "späße").symlink_to(real)
    (tmp_path / "other").write_text("other")
    (there / "big.bin").symlink_to(tmp_path / "other")
    done = syncing.sync(node, tree_of(project), str(there), follow_deletions=False)
    # A current rsync does not follow the link; files beyond the link come over the connection.
    assert done.rsync_files in (len(LARGE) - 1, len(LARGE))
    assert (there / "späße").is_symlink()
    assert not (there / "big.bin").is_symlink()
    assert (tmp_path / "other").read_text() == "other"
    assert filecmp.cmp(real / "ö", project / "späße" / "ö", shallow=False)


@needs_rsync
def test_sync_falls_back_when_rsync_fails(node: Node, folder: Path, project: Path, there: Path) -> None:
    config = there.parent / "wrong"
    node.transport.ssh_config = config
    config.write_text((folder / "ssh_config").read_text().replace("Port ", "Port 1 #"))
    output: list[str] = []
    done = syncing.sync(node, tree_of(project), str(there), say=output.append)
    assert (done.files, done.rsync_files) == (FILES, 0)
    assert output[0].startswith("rsync ended early (")
    check(project, there)


def test_sync_without_rsync_uses_ssh_connection(node: Node, project: Path, there: Path) -> None:
    node.transport.ssh_config = None
    done = syncing.sync(node, tree_of(project), str(there))
    assert (done.files, done.rsync_files, done.removed) == (FILES, 0, 0)
    check(project, there)


@pytest.mark.parametrize("way", ["stream", pytest.param("rsync", marks=needs_rsync)])
def test_sync_completes_after_killed_client(
    node: Node, folder: Path, project: Path, there: Path, cluster: Gpuctl, way: str
) -> None:
    """The next sync completes; neither folders nor processes are left."""
    enlarge(project)
    client = start(folder, project, there, way)
    wait_for(lambda: is_growing(there), what="a file on its way", deadline_s=30)
    client.kill()
    client.communicate()
    wait_for(lambda: not using(there), what="the end of what was at work there", deadline_s=30)
    assert not (there / "big.bin").exists()
    done = syncing.sync(node, tree_of(project), str(there))
    assert 0 < done.files <= FILES
    check(project, there)


@needs_rsync
def test_sync_completes_after_killed_rsync(node: Node, folder: Path, project: Path, there: Path) -> None:
    enlarge(project)
    client = start(folder, project, there, "rsync")
    wait_for(lambda: is_growing(there), what="a file on its way", deadline_s=30)
    for child in psutil.Process(client.pid).children():
        if child.name() == "rsync":
            child.terminate()
    _, output = client.communicate(timeout=60)
    assert client.returncode == 0, output
    check(project, there)


def test_sync_completes_after_kill_of_its_process_on_the_node(node: Node, project: Path, there: Path) -> None:
    """The next sync deletes the files that the killed sync left; a folder in use is not touched."""
    enlarge(project)
    failed: list[RemoteError] = []

    def one() -> None:
        try:
            syncing.sync(node, tree_of(project), str(there))
        except RemoteError as error:
            failed.append(error)

    thread = threading.Thread(target=one)
    thread.start()
    wait_for(lambda: is_growing(there), what="a file on its way", deadline_s=30)
    for process in using(there):
        process.kill()
    thread.join(30)
    assert failed
    assert len(list(there.glob(".gpuctl-incoming-*"))) == 1
    assert syncing.sync(node, tree_of(project), str(there)).files > 0
    check(project, there)


def test_concurrent_syncs_into_one_folder_succeed(
    node: Node, folder: Path, project: Path, there: Path
) -> None:
    """Same as on nodes that share one home."""
    clients = [start(folder, project, there, "stream") for _ in range(2)]
    ends = [client.communicate(timeout=60)[1] for client in clients]
    assert [client.returncode for client in clients] == [0, 0], ends
    check(project, there)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory in /proc")
def test_sync_of_large_file_uses_little_memory(folder: Path, project: Path, there: Path) -> None:
    with (project / "big.bin").open("wb") as file:
        file.truncate(200_000_000)
    client = start(folder, project, there, "stream")
    out, output = client.communicate(timeout=120)
    assert client.returncode == 0, output
    peak_kb = next(int(line.split()[1]) for line in out.splitlines() if line.startswith("VmHWM:"))
    assert peak_kb < 120_000
    assert (there / "big.bin").stat().st_size == 200_000_000


def enlarge(project: Path) -> None:
    """Enough for something to happen in the middle."""
    with (project / "big.bin").open("ab") as file:
        file.truncate(300_000_000)


def start(folder: Path, project: Path, there: Path, way: str) -> "subprocess.Popen[str]":
    """Start a sync in a separate process."""
    config = folder / ("ssh_config" if way == "rsync" else "none")
    words = [sys.executable, "-c", CLIENT, str(folder), str(project), str(there), str(config)]
    environment = {**os.environ, "PYTHONPATH": str(Path(syncing.__file__).parent.parent)}
    return subprocess.Popen(
        words,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def is_growing(there: Path) -> bool:
    """Return whether a part of the large file has arrived, but not all."""
    for path in there.glob(".gpuctl-incoming-*/*"):
        try:
            if path.stat().st_size > 1_000_000:
                return True
        except FileNotFoundError:
            continue
    return False


def using(there: Path) -> list[psutil.Process]:
    """The processes with open files in the folder, and rsyncs that name it."""
    result = []
    for process in psutil.process_iter():
        try:
            names = [file.path for file in process.open_files()] + process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if any(str(there) in name for name in names) and process.pid != os.getpid():
            result.append(process)
    return result
