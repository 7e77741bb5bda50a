"""The files of a host of the provider `local`, in `clusters/<name>/local/<machine>/`.

    host.json   the record      server.json  the server's configuration      server.log
    host_key    its private key gpus         its share of the GPUs           home/

The hosts share `uv-cache/` in the parent folder, and link to its downloads. A host also has a folder for temporary
files, `/tmp/gpuctl-XXXXXX`. A record without a port is an intent: the host's creation began and was not finished.
"""

import os
import pwd
import secrets
import shutil
import site
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inventories import codec
from inventories.disk import files
from provision.provider import Leftover

KEPT_ENV = frozenset(
    {"PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
)
"""Variables that a host inherits from the command that starts it, with `LC_*`: those that this machine needs to work,
but no variable that a machine elsewhere would not have, such as credentials."""

UV_CACHE = "uv-cache"
IMPORT_ORDER = Path(__file__).with_name("import_order")


@dataclass(frozen=True, kw_only=True)
class HostRecord:
    """A host, from the choice of its id on."""

    id: str
    name: str
    rank: int
    user: str
    host_key: str
    """Public half."""
    python: str
    pid: int | None = None
    port: int | None = None


class HostFolder:
    """A host's folder, which may not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record_path = path / "host.json"
        self.config_path = path / "server.json"
        self.log_path = path / "server.log"
        self.host_key_path = path / "host_key"
        self.gpus_path = path / "gpus"
        self.home = path / "home"

    def load(self) -> HostRecord | None:
        """Return the record. `None`: it does not exist. Raises CorruptFile or NewerFormat."""
        data = files.read_bytes(self.record_path)
        if data is None:
            return None
        rebuild = (
            "End the cluster with `gpuctl down`, which does not need the file, and run `gpuctl up` again."
        )
        return codec.load(HostRecord, data, str(self.record_path), rebuild=rebuild)

    def save(self, record: HostRecord) -> None:
        """Replace the record, atomically."""
        files.write_atomic(self.record_path, codec.dump(record))

    def gpus(self) -> tuple[str, ...]:
        """Return the host's share of the GPUs, by their names in CUDA_VISIBLE_DEVICES."""
        text = (files.read_bytes(self.gpus_path) or b"").decode()
        return tuple(text.split(",")) if text else ()

    def give_gpus(self, devices: tuple[str, ...]) -> None:
        """Set the share. Open sessions keep the old one."""
        if self.gpus() != devices:
            files.write_atomic(self.gpus_path, ",".join(devices).encode())


def remove_tree(path: Path) -> tuple[Leftover, ...]:
    """Remove a folder, with unwritable files. Returns the folder if that fails."""
    try:
        for folder, names, _ in os.walk(path):
            for inner in (Path(folder, name) for name in names):
                if not inner.is_symlink() and not os.access(inner, os.R_OK | os.W_OK | os.X_OK):
                    inner.chmod(0o700)
        if path.exists():
            shutil.rmtree(path)
    except OSError as error:
        return (Leftover(kind="folder", id=str(path), reason=f"It could not be removed: {error}."),)
    return ()


def new_id() -> str:
    """Return a new host id, whose folder for temporary files does not exist."""
    while True:
        host_id = f"local-{secrets.token_hex(8)}"
        if not os.path.lexists(temp_dir_of(host_id)):
            return host_id


def temp_dir_of(host_id: str) -> Path:
    """Return a host's folder for temporary files. Short, as a path of a socket has at most 103 characters."""
    return Path("/tmp", f"gpuctl-{host_id[-6:]}")  # noqa: S108 - the name can't be guessed before it is made


def make_temp_dir(path: Path, environ: Mapping[str, str]) -> None:
    """Make a new folder for temporary files, or a link to one in the user's TMPDIR."""
    parent = Path(os.path.realpath(path.parent))
    tmpdir = Path(os.path.realpath(environ.get("TMPDIR") or parent))
    if tmpdir == parent or not (tmpdir.is_dir() and os.access(tmpdir, os.W_OK | os.X_OK)):
        path.mkdir(mode=0o700)
        return
    real = tmpdir / path.name
    real.mkdir(mode=0o700)
    try:
        path.symlink_to(real)
    except OSError:
        real.rmdir()
        raise


def remove_temp_dir(path: Path) -> tuple[Leftover, ...]:
    """Remove a folder for temporary files, if it is ours.

    After a boot, another user may take its name, or the name that it linked to. Their folder is not removed, and no
    other folder of ours to which they have made a link.
    """
    if not _is_ours(path):
        return ()
    if not path.is_symlink():
        return remove_tree(path)
    real = path.readlink()
    leftovers = (
        remove_tree(real) if _is_ours(real) and not real.is_symlink() and real.name == path.name else ()
    )
    if not leftovers:
        path.unlink()
    return leftovers


def _is_ours(path: Path) -> bool:
    """Return whether the path exists and belongs to this user."""
    try:
        return path.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def current_user() -> str:
    """Return the name of the process's user, without the environment."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as a user without an entry
        return str(os.getuid())


def host_env(
    environ: Mapping[str, str], *, home: Path, temp_dir: Path, marks: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a host's server and of its commands. `marks` identify its processes."""
    inherited = {key: value for key, value in environ.items() if key in KEPT_ENV or key.startswith("LC_")}
    user = current_user()
    # Not the account's shell: that of an account for services refuses to work.
    shell = environ.get("SHELL", "/bin/sh")
    host_values = {"HOME": str(home), "TMPDIR": str(temp_dir), "USER": user, "LOGNAME": user, "SHELL": shell}
    env = {"PATH": os.defpath, "PYTHONPATH": str(IMPORT_ORDER)} | inherited | host_values | dict(marks)
    if site.ENABLE_USER_SITE:
        # The interpreter's packages may lie in the user's real home.
        env["PYTHONUSERBASE"] = site.getuserbase()
    return env


def devices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return this machine's usable GPUs, by their names in CUDA_VISIBLE_DEVICES. Empty without a driver."""
    if shutil.which("nvidia-smi") is None:
        return ()
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=30)
    count = sum(line.startswith("GPU ") for line in listing.stdout.splitlines())
    allowed = environ.get("CUDA_VISIBLE_DEVICES")
    if count and allowed is not None:
        return tuple(part.strip() for part in allowed.split(",") if part.strip())
    return tuple(str(index) for index in range(count))


def share(available: tuple[str, ...], *, rank: int, count: int) -> tuple[str, ...]:
    """Return the GPUs of host `rank` of `count`. All have the same number, so a remainder is unused."""
    each = len(available) // count
    return available[rank * each : (rank + 1) * each]
