"""What the provider `local` keeps of a host, in `clusters/<name>/local/<machine>/`.

    host.json   the record      server.json  the server's configuration      server.log
    host_key    its private key gpus         its share of the GPUs           home/

and beside the hosts' folders `uv-cache/`, which they share: what one has downloaded, others link to. A host also has
its folder for temporary files, `/tmp/gpuctl-XXXXXX`. A record without a port is an intent: the host's creation
began and was not finished.
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
"""What a host takes over from the environment of the command that starts it, besides `LC_*`: what this
machine needs to work, and nothing that a machine elsewhere would not have, such as credentials."""

UV_CACHE = "uv-cache"
IMPORT_ORDER = Path(__file__).with_name("import_order")


@dataclass(frozen=True, kw_only=True)
class HostRecord:
    """One host, from its id's choice on."""

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
    """One host's folder, which need not be there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record_path = path / "host.json"
        self.config_path = path / "server.json"
        self.log_path = path / "server.log"
        self.host_key_path = path / "host_key"
        self.gpus_path = path / "gpus"
        self.home = path / "home"

    def load(self) -> HostRecord | None:
        """The record; None where there is none. Raises CorruptFile or NewerFormat."""
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
        """The host's share of the GPUs, as CUDA_VISIBLE_DEVICES names them."""
        text = (files.read_bytes(self.gpus_path) or b"").decode()
        return tuple(text.split(",")) if text else ()

    def give_gpus(self, devices: tuple[str, ...]) -> None:
        """Set the share; sessions that are open keep theirs."""
        if self.gpus() != devices:
            files.write_atomic(self.gpus_path, ",".join(devices).encode())


def remove_tree(path: Path) -> tuple[Leftover, ...]:
    """Remove a folder, also what a command made unwritable in there. Returns it where that fails."""
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
    """An id for a host that no other had, and whose folder for temporary files is not there."""
    while True:
        host_id = f"local-{secrets.token_hex(8)}"
        if not os.path.lexists(temp_dir_of(host_id)):
            return host_id


def temp_dir_of(host_id: str) -> Path:
    """A host's folder for temporary files. Short, as paths of sockets in there may have 103 characters."""
    return Path("/tmp", f"gpuctl-{host_id[-6:]}")  # noqa: S108 - nobody knows the name before it is made


def make_temp_dir(path: Path, environ: Mapping[str, str]) -> None:
    """Make that folder, new. Where the user has another place for temporary files, it links to one in there."""
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
    """Remove that folder, where it is there and ours.

    Once it is gone, as after a boot, anybody may take its name, here and where it linked to. Nothing of theirs is
    removed, and no other folder of ours to which they have made a link.
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
    """Whether there is something by that name, and we made it."""
    try:
        return path.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def current_user() -> str:
    """The name of the user that we run as, whatever the environment says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as a user that has no entry
        return str(os.getuid())


def host_env(
    environ: Mapping[str, str], *, home: Path, temp_dir: Path, marks: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a host's server and of all commands on it; `marks` make its processes known."""
    kept = {key: value for key, value in environ.items() if key in KEPT_ENV or key.startswith("LC_")}
    user = current_user()
    # Not the account's shell: that of an account for services refuses to work.
    shell = environ.get("SHELL", "/bin/sh")
    own = {"HOME": str(home), "TMPDIR": str(temp_dir), "USER": user, "LOGNAME": user, "SHELL": shell}
    env = {"PATH": os.defpath, "PYTHONPATH": str(IMPORT_ORDER)} | kept | own | dict(marks)
    if site.ENABLE_USER_SITE:
        # The interpreter's packages may lie in the user's real home.
        env["PYTHONUSERBASE"] = site.getuserbase()
    return env


def devices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """This machine's GPUs that may be used, as CUDA_VISIBLE_DEVICES names them; none without a driver."""
    if shutil.which("nvidia-smi") is None:
        return ()
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=30)
    count = sum(line.startswith("GPU ") for line in listing.stdout.splitlines())
    allowed = environ.get("CUDA_VISIBLE_DEVICES")
    if count and allowed is not None:
        return tuple(part.strip() for part in allowed.split(",") if part.strip())
    return tuple(str(index) for index in range(count))


def share(available: tuple[str, ...], *, rank: int, count: int) -> tuple[str, ...]:
    """The GPUs of host `rank` of `count`: as many for each, so the remainder is for nobody."""
    each = len(available) // count
    return available[rank * each : (rank + 1) * each]
