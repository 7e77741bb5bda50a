"""uv on a node: one that is there, one out of a wheel that was sent, or a pinned one from the package index."""

import base64
import configparser
import hashlib
import html
import os
import platform
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path
from typing import Callable, Dict, List, Mapping, MutableMapping, Optional, Tuple

from remote.node import process
from remote.node.home_folder import NODE_HOME
from remote.shared.constants import UV
from remote.shared.files import temporary_beside

VERSION = "0.13.9"
PINNED = "uv==" + VERSION
OLDEST = (0, 10)
"""Older ones do not know the CUDA builds of today."""
WHEELS = {
    ("Linux", "x86_64"): (
        "uv-0.13.9-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19",
    ),
    ("Linux", "aarch64"): (
        "uv-0.13.9-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl",
        "5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe",
    ),
    ("Darwin", "x86_64"): (
        "uv-0.13.9-py3-none-macosx_10_12_x86_64.whl",
        "c16ed11e013557536b3e60065f1b912f6407bd6518e041b961e23ef9e6b4fbf5",
    ),
    ("Darwin", "arm64"): (
        "uv-0.13.9-py3-none-macosx_11_0_arm64.whl",
        "66c512266d633bef48384a1f53003f41f2a8e7b36fe6e7fbfd3e0fd52d96fa63",
    ),
}  # type: Dict[Tuple[str, str], Tuple[str, str]]
"""The pinned version's wheel and its sha256, by system and machine."""
DEFAULT_INDEX = "https://pypi.org/simple"
INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
UV_TO_PIP = {
    "UV_DEFAULT_INDEX": "PIP_INDEX_URL",
    "UV_INDEX_URL": "PIP_INDEX_URL",
    "UV_FIND_LINKS": "PIP_FIND_LINKS",
    "UV_INSECURE_HOST": "PIP_TRUSTED_HOST",
}
"""Variables of uv and what pip calls them; of two for one the first counts."""
PIP_TO_UV = {
    "PIP_EXTRA_INDEX_URL": "UV_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_TRUSTED_HOST": "UV_INSECURE_HOST",
}
UV_FIRST = ("UV_INDEX", "UV_EXTRA_INDEX_URL")
"""Indexes of which uv takes the first one that has a package. pip is not given them: it takes the highest version of
all, so that anybody could publish a package of a private one's name.
"""
CERT_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
PIP_FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
"""Files with more weight come later."""
TIMEOUT_S = 30.0
MAX_BYTES = 100 * 1000 * 1000

Say = Callable[[str], None]


class NotSent(OSError):
    """A node without uv got wheels, and uv is not among them."""


def provide(wheels: Optional[Path], say: Say) -> str:
    """The path of a uv that works. `wheels` is a folder of wheels that were sent, where a node has no way out.

    Raises OSError with a sentence if it can't be had, NotSent if it has to be sent.
    """
    program = installed()
    if program:
        return program
    if wheels is not None:
        name = sent([path.name for path in wheels.glob("uv-*.whl")], platform.system(), platform.machine())
        if name is None:
            raise NotSent("uv is not on this node, and not among the wheels that were sent")
        return unpack(wheels / name, NODE_HOME / UV / name.split("-")[1] / "uv")
    return _download(say)


def installed() -> Optional[str]:
    """Return a uv on the PATH, in its installer's place, or in ours; `None` if all are too old."""
    places = [shutil.which("uv"), os.path.expanduser("~/.local/bin/uv")]
    places += sorted(map(str, (NODE_HOME / UV).glob("*/uv")), reverse=True)
    for place in places:
        usable = place and os.access(place, os.X_OK)
        if place and usable and version_of(process.output_of([place, "--version"], 10)[1]) >= OLDEST:
            return place
    return None


def version_of(text: str) -> Tuple[int, ...]:
    """`uv 0.13.9 (x86_64-…)` as numbers; empty, which is older than all others, for anything else."""
    match = re.match(r"uv (\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(part) for part in match.groups()) if match else ()


def sent(names: List[str], system: str, machine: str) -> Optional[str]:
    """The wheel of uv among these that suits a system and machine; the last by name."""
    kinds = ("manylinux",) if system == "Linux" else ("macosx",)
    fitting = [n for n in sorted(names) if machine in n and any(kind in n for kind in kinds)]
    return fitting[-1] if fitting else None


def unpack(wheel: Path, program: Path) -> str:
    """Put the `uv` of a wheel at `program`, whole or not at all."""
    program.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = temporary_beside(program)
    try:
        with zipfile.ZipFile(str(wheel)) as archive:
            member = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
            with archive.open(member) as source, open(str(temporary), "xb") as target:
                shutil.copyfileobj(source, target, 1024 * 1024)
        os.chmod(str(temporary), 0o700)
        os.replace(str(temporary), str(program))
    except (StopIteration, zipfile.BadZipFile) as error:
        raise OSError("{} holds no uv: fetch it again".format(wheel.name)) from error
    finally:
        if temporary.exists():
            temporary.unlink()
    return str(program)


def _download(say: Say) -> str:
    """The pinned wheel from the node's package index, its digest checked, unpacked."""
    known = WHEELS.get((platform.system(), platform.machine()))
    hint = (
        "install uv there (its ~/.local/bin is looked at), send its wheel and all others with --wheels DIR, "
        "or use what the nodes have: `gpuctl up --python python3`"
    )
    if known is None:
        raise OSError(
            "uv is not on this node, and none is known for {} on {}: {}".format(
                platform.system(), platform.machine(), hint
            )
        )
    name, digest = known
    index = index_url(os.environ, _pip_settings())
    page = index.rstrip("/") + "/uv/"
    say("downloading uv {} from {}".format(VERSION, _host(index)))
    folder = NODE_HOME / UV / VERSION
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = temporary_beside(folder / name)
    try:
        with _open(page, index) as answer:
            text = answer.read(MAX_BYTES).decode(errors="replace")
            link = find_link(answer.geturl(), text, name)
        if link is None:
            raise OSError("{} does not have {}".format(_host(index), name))
        with _open(link, index) as answer, open(str(temporary), "xb") as file:
            shutil.copyfileobj(answer, file, 1024 * 1024)
        if hashlib.sha256(temporary.read_bytes()).hexdigest() != digest:
            raise OSError("{} from {} is not the file that it should be".format(name, _host(index)))
        return unpack(temporary, folder / "uv")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise OSError("uv is not on this node and can't be fetched ({}): {}".format(reason, hint)) from error
    finally:
        if temporary.exists():
            temporary.unlink()


def size_of(address: str) -> int:
    """Return the size of a file of an index, which is not read. Raises OSError, ValueError."""
    with _open(address, index_url(os.environ, _pip_settings())) as answer:
        return int(answer.headers["Content-Length"] or 0)


def find_link(page: str, text: str, name: str) -> Optional[str]:
    """The address of a file on an index's page about a package."""
    for href in re.findall(r"""href=["']([^"']+)["']""", text):
        address = urllib.parse.urljoin(page, html.unescape(href)).partition("#")[0]
        if urllib.parse.unquote(urllib.parse.urlsplit(address).path).rpartition("/")[2] == name:
            return address
    return None


def index_url(environment: Mapping[str, str], pip: Mapping[str, str]) -> str:
    """The package index that this node is set up to use."""
    named = [environment.get(name, "") for name in INDEX_VARIABLES] + [pip.get("index-url", "")]
    # uv's variable may give the index a name: `corp=https://…`.
    return re.sub(r"^[\w.-]+=(?=https?:|file:)", "", next((url for url in named if url), DEFAULT_INDEX))


def name_of_index() -> str:
    """The package index of this node, as messages name it."""
    return _host(index_url(os.environ, _pip_settings()))


def uv_environment(environment: Mapping[str, str], pip: Mapping[str, str]) -> Dict[str, str]:
    """Return the settings of pip that uv does not read: the index and the certificates."""
    settings = {}
    if not any(name in environment for name in INDEX_VARIABLES[:2]):
        index = index_url(environment, pip)
        if index != DEFAULT_INDEX:
            settings["UV_DEFAULT_INDEX"] = index
    certificates = _certificates(environment, pip)
    if certificates and "SSL_CERT_FILE" not in environment:
        settings["SSL_CERT_FILE"] = certificates
    return settings


def of_this_node() -> Dict[str, str]:
    """`uv_environment` of the node that this runs on."""
    return uv_environment(os.environ, _pip_settings())


def set_indexes(variables: Mapping[str, str], environment: MutableMapping[str, str]) -> None:
    """Set up the indexes that a person uses elsewhere, in place of this node's own: for uv and for pip alike."""
    if any(name in variables for name in INDEX_VARIABLES):
        for name in INDEX_VARIABLES:
            environment.pop(name, None)
    environment.update(variables)
    for names in (UV_TO_PIP, PIP_TO_UV):
        for known, other in names.items():
            if known in variables and other not in variables and other not in environment:
                parts = re.split(r"[\s,]+", variables[known].strip())
                bare = [re.sub(r"^[\w.-]+=(?=https?:|file:)", "", part) for part in parts]
                if other == "UV_FIND_LINKS":  # pip passes over folders that are not there, and uv does not
                    bare = [place for place in bare if "://" in place or os.path.isdir(place)]
                environment[other] = ("," if other == "UV_FIND_LINKS" else " ").join(bare)


def tell_of_pip(environment: Mapping[str, str], say: Say) -> None:
    """Say which indexes are not used where pip installs."""
    names = not_for_pip(environment)
    if names:
        say("{} is not used: pip, unlike uv, would take a package from any index".format(" and ".join(names)))


def not_for_pip(environment: Mapping[str, str]) -> List[str]:
    """The variables that are set for uv and have no counterpart for pip."""
    return [name for name in UV_FIRST if environment.get(name) and "PIP_EXTRA_INDEX_URL" not in environment]


def _certificates(environment: Mapping[str, str], pip: Mapping[str, str]) -> Optional[str]:
    named = [environment.get(name) for name in CERT_VARIABLES] + [pip.get("cert")]
    return next((path for path in named if path), None)


def _pip_settings() -> Dict[str, str]:
    """Return the `[global]` settings of pip's files; empty for a file that can't be read."""
    settings: Dict[str, str] = {}
    for place in (*PIP_FILES, os.environ.get("PIP_CONFIG_FILE", "")):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(os.path.expanduser(place))
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        if parser.has_section("global"):
            settings.update(parser.items("global"))
    return settings


def _open(address: str, index: str) -> "urllib.request._UrlopenRet":
    """Open an address; the name and password of the index go into a header, to the index's own host only."""
    import ssl

    parts, index_parts = urllib.parse.urlsplit(address), urllib.parse.urlsplit(index)
    if parts.scheme not in ("https", "http"):
        raise OSError("{} is no address of a web server".format(parts.scheme))
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(bare, headers={"Accept": "text/html", "User-Agent": "gpuctl"})  # noqa: S310
    if index_parts.username and (parts.scheme, parts.hostname, parts.port) == (
        index_parts.scheme,
        index_parts.hostname,
        index_parts.port,
    ):
        words = [urllib.parse.unquote(word or "") for word in (index_parts.username, index_parts.password)]
        login = base64.b64encode(":".join(words).encode()).decode()
        request.add_unredirected_header("Authorization", "Basic " + login)
    trusted = _certificates(os.environ, _pip_settings())
    context = ssl.create_default_context(cafile=trusted) if parts.scheme == "https" else None
    return urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context)  # noqa: S310


def _host(address: str) -> str:
    """An index as messages name it: without names and passwords."""
    return urllib.parse.urlsplit(address).hostname or address
