"""A mirror of Ubuntu's driver packages for real apt and dpkg: small packages with the real names, over HTTP.

Its nvidia-smi works from the boot after the installation on, and lists the GPUs that are on the bus, or the rows in
/etc/nvidia-smi.csv.
"""

import hashlib
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

KERNEL = "6.8.0-1035-oracle"
INSTALLED_IN = "/var/lib/nvidia-installed-in"
LIST_GPUS = """\
[ -e /etc/nvidia-smi.csv ] && exec cat /etc/nvidia-smi.csv
number=0
for device in /sys/bus/pci/devices/*; do
    grep -q 0x03 $device/class || continue
    echo "$number, GPU-5a1f0b7$number, NVIDIA A10, 23028, 580.95.05"
    number=$((number + 1))
done
"""
SMI = f"""\
#!/bin/sh
if [ "$(cat /proc/sys/kernel/random/boot_id)" = "$(cat {INSTALLED_IN})" ]; then
    echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    exit 9
fi
{LIST_GPUS}"""
SLOW = "echo begun > /run/begun; until [ -e /etc/let-go ]; do sleep 0.1; done"
"""For `after` of a package: its installation takes until the file /etc/let-go is there."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package of the mirror."""

    depends: str = ""
    version: str = "580.95.05-0ubuntu1"
    files: Mapping[str, str]
    after: str = ""
    """Shell commands that are run when it has been unpacked."""


def packages(
    *, kernel: str = KERNEL, branch: int = 580, kind: str = "-open", after: str = ""
) -> dict[str, Package]:
    """Return the packages of one branch and kind of module, for one kernel, with the meta-package of its series."""
    exact = f"linux-modules-nvidia-{branch}-server{kind}-{kernel}"
    follows = f"{kernel.split('-', 2)[2]}-{kernel.rpartition('.')[0]}"
    boot = f"cat /proc/sys/kernel/random/boot_id > {INSTALLED_IN}"
    version = f"{branch}.95.05-0ubuntu1"
    return {
        exact: Package(files={}, after=f"{boot}\n{after}", version=version),
        f"linux-modules-nvidia-{branch}-server{kind}-{follows}": Package(
            depends=exact, files={}, version=version
        ),
        f"nvidia-headless-no-dkms-{branch}-server{kind}": Package(files={}, version=version),
        f"nvidia-utils-{branch}-server": Package(files={"usr/bin/nvidia-smi": SMI}, version=version),
        f"nvidia-fabricmanager-{branch}": Package(files={}, version=version),
    }


def build(folder: Path, offered: Mapping[str, Package]) -> Path:
    """Write the packages and their lists into a new folder; returns it."""
    folder.mkdir(parents=True)
    stanzas = []
    for name, package in offered.items():
        tree = folder / "tree"
        control = f"Package: {name}\nVersion: {package.version}\nArchitecture: all\nMaintainer: nobody\n"
        control += f"Depends: {package.depends}\n" if package.depends else ""
        control += f"Description: {name}\n"
        (tree / "DEBIAN").mkdir(parents=True)
        tree.chmod(0o755)
        (tree / "DEBIAN" / "control").write_text(control)
        postinst = tree / "DEBIAN" / "postinst"
        postinst.write_text(f"#!/bin/sh\nset -e\n{package.after}\n")
        postinst.chmod(0o755)
        for path, text in package.files.items():
            (tree / path).parent.mkdir(parents=True)
            (tree / path).write_text(text)
            (tree / path).chmod(0o755)
        archive = folder / f"{name}.deb"
        pack = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(archive)]
        subprocess.run(pack, check=True, capture_output=True)
        shutil.rmtree(tree)
        stanzas.append(f"{control}Filename: ./{archive.name}\n{_sums(archive)}\n")
    lists = folder / "Packages"
    lists.write_text("\n".join(stanzas))
    digest = hashlib.sha256(lists.read_bytes()).hexdigest()
    (folder / "Release").write_text(f"SHA256:\n {digest} {lists.stat().st_size} Packages\n")
    return folder


def _sums(archive: Path) -> str:
    data = archive.read_bytes()
    return f"Size: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serve(folder: Path, address: str) -> Iterator[str]:
    """Serve the folder, and yield the mirror's URL."""
    with ThreadingHTTPServer((address, 0), partial(_Quiet, directory=str(folder))) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"http://{address}:{server.server_address[1]}/"
        finally:
            server.shutdown()


def ubuntu(urls: Sequence[str], *, system: str = "ubuntu") -> str:
    """Return the shell commands that turn a host into an Ubuntu whose packages come only from these mirrors."""
    sources = "".join(f"deb [trusted=yes] {url} ./\\n" for url in urls)
    return f"""\
rm -rf /etc/apt/apt.conf.d/* /etc/apt/sources.list.d/* /var/lib/apt/lists/* /etc/os-release
printf '{sources}' > /etc/apt/sources.list
printf 'ID={system}\\nPRETTY_NAME="{system} of the tests"\\n' > /etc/os-release
mkdir -p /var/lib/apt/lists/partial"""
