"""Test the node's side of environments: uv's origin, images' Pythons, dpkg's lock, files left by a build."""

import base64
import hashlib
import json
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from zipfile import ZipFile

import pytest

from remote.node.environments import build, build_lock, uv_tool
from remote.shared import frames

ROOT = Path(__file__).parents[3]
NAME, DIGEST = uv_tool.WHEELS.get((platform.system(), platform.machine()), ("", ""))
LOGIN = "Basic " + base64.b64encode(b"me:s@cret").decode()


class Words:
    """Record a build's progress lines."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def progress(self, text: str) -> None:
        self.said.append(text)

    def check(self, what: str) -> None:
        pass


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo one; echo error: no; echo why; exit 1", ["one"]),
        ("echo one; echo ERROR: a warning; echo two", ["one", "ERROR: a warning", "two"]),
    ],
)
def test_error_of_an_installer_is_left_to_who_knows_what_comes_of_it(
    tmp_path: Path, script: str, message: list[str]
) -> None:
    words = Words()
    code, tail = build_lock.run(["sh", "-c", script], tmp_path, {"PATH": "/usr/bin:/bin"}, words)
    assert (code, words.said, len(tail)) == (int("exit 1" in script), message, 3)


@pytest.mark.parametrize(
    ("message", "version"),
    [
        ("uv 0.13.9 (x86_64-unknown-linux-gnu)", (0, 13, 9)),
        ("uv 0.9.30\n", (0, 9, 30)),
        ("", ()),
        ("bash: uv", ()),
    ],
)
def test_version_of_reads_the_version_of_uv(message: str, version: tuple[int, ...]) -> None:
    assert uv_tool.version_of(message) == version


def test_sent_uv_wheel_fits_the_node() -> None:
    names = [name for name, _ in uv_tool.WHEELS.values()]
    for (system, machine), (name, _) in uv_tool.WHEELS.items():
        assert uv_tool.sent(names, system, machine) == name
    assert uv_tool.sent(["uv-0.13.9-py3-none-win_amd64.whl"], "Linux", "x86_64") is None


@pytest.mark.parametrize(
    ("environment", "pip", "index", "message"),
    [
        ({}, {}, "https://pypi.org/simple", {}),
        ({"UV_INDEX_URL": "https://a/"}, {"index-url": "https://b"}, "https://a/", {}),
        ({"UV_DEFAULT_INDEX": "corp=https://a/s"}, {}, "https://a/s", {}),
        ({"PIP_INDEX_URL": "https://a"}, {}, "https://a", {"UV_DEFAULT_INDEX": "https://a"}),
        (
            {},
            {"index-url": "https://b", "cert": "/c.pem"},
            "https://b",
            {"UV_DEFAULT_INDEX": "https://b", "SSL_CERT_FILE": "/c.pem"},
        ),
        ({"SSL_CERT_FILE": "/own"}, {"cert": "/c.pem"}, "https://pypi.org/simple", {}),
    ],
)
def test_index_url_comes_from_environment_then_pip(
    environment: dict[str, str], pip: dict[str, str], index: str, message: dict[str, str]
) -> None:
    assert uv_tool.index_url(environment, pip) == index
    assert uv_tool.uv_environment(environment, pip) == message


def test_find_link_resolves_links_of_an_index_page() -> None:
    page = "<a href=\"../../f/x-1.whl#sha256=1\">x-1.whl</a><a data-y href='https://h/y%2B1.whl?a=1&amp;b=2'>y</a>"
    assert uv_tool.find_link("https://i/simple/x/", page, "x-1.whl") == "https://i/f/x-1.whl"
    assert uv_tool.find_link("https://i/simple/x/", page, "y+1.whl") == "https://h/y%2B1.whl?a=1&b=2"
    assert uv_tool.find_link("https://i/simple/x/", page, "z.whl") is None


@pytest.fixture
def index() -> Iterator[dict[str, bytes]]:
    """Yield a package index behind a password: its files by path; `url` is its address."""
    files: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers.get("Authorization") == LOGIN
            body = files.get(self.path) if allowed else None
            self.send_response(200 if body is not None else 404 if allowed else 401)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    files["url"] = f"http://me:s%40cret@127.0.0.1:{server.server_port}/simple".encode()
    files["/simple/uv/"] = f'<a href="../files/{NAME}">uv</a>'.encode()
    yield files
    server.shutdown()
    thread.join()
    server.server_close()


def provide(home: Path, index: str, digest: str) -> "subprocess.CompletedProcess[str]":
    """`uv_tool.provide` on a node with an empty home, no uv, and this index; the pinned digest is `digest`."""
    script = (
        "import sys\nfrom remote.node.environments import uv_tool\n"
        f"uv_tool.WHEELS = {{key: (name, {digest!r}) for key, (name, _) in uv_tool.WHEELS.items()}}\n"
        "try:\n    print(uv_tool.provide(None, lambda text: print(text, file=sys.stderr)))\n"
        "except OSError as error:\n    sys.exit(str(error))\n"
    )
    home.mkdir(exist_ok=True)
    environment = {"HOME": str(home), "PATH": str(home), "UV_DEFAULT_INDEX": index, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-B", "-c", script], env=environment, capture_output=True, text=True, check=False
    )


def wheel_of_uv(path: Path) -> bytes:
    with ZipFile(path, "w") as archive:
        archive.writestr(f"uv-{uv_tool.VERSION}.data/scripts/uv", f"#!/bin/sh\necho uv {uv_tool.VERSION}\n")
    return path.read_bytes()


needs_a_wheel = pytest.mark.skipif(not NAME, reason="needs a system that uv's wheel is pinned for")


@needs_a_wheel
def test_uv_is_downloaded_once_from_the_nodes_index(index: dict[str, bytes], tmp_path: Path) -> None:
    body = index[f"/simple/files/{NAME}"] = wheel_of_uv(tmp_path / "uv.whl")
    url, home = index.pop("url").decode(), tmp_path / "home"
    done = provide(home, url, hashlib.sha256(body).hexdigest())
    program = home / ".gpuctl-node" / "uv" / uv_tool.VERSION / "uv"
    assert (done.stdout.strip(), done.returncode) == (str(program), 0), done.stderr
    assert done.stderr == f"downloading uv {uv_tool.VERSION} from 127.0.0.1\n"
    assert list(program.parent.iterdir()) == [program]
    index.clear()
    assert provide(home, url, "").stdout.strip() == str(program), "the second time it is there"


@needs_a_wheel
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "is not the file that it should be"),
        ({"/simple/uv/": b"nothing"}, "127.0.0.1 does not have uv-"),
        ({"url": b"http://127.0.0.1:9/simple"}, "Connection refused"),
        ({"url": b"file:///etc"}, "file is no address of a web server"),
        (
            {"/simple/uv/": b'<a href="file:///x/' + NAME.encode() + b'">'},
            "file is no address of a web server",
        ),
    ],
)
def test_uv_download_failure_names_the_cause_without_secrets(
    index: dict[str, bytes], tmp_path: Path, change: dict[str, bytes], message: str
) -> None:
    index[f"/simple/files/{NAME}"] = wheel_of_uv(tmp_path / "uv.whl")
    index.update(change)
    done = provide(tmp_path / "home", index.pop("url").decode(), DIGEST)
    assert done.returncode == 1
    assert message in done.stderr
    assert "can't be fetched" in done.stderr
    assert "--wheels DIR" in done.stderr
    assert "cret" not in done.stderr
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == []


def test_torch_of_reads_the_version_beside_an_interpreter(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.touch()
    assert build.torch_of(python) is None
    (tmp_path / "lib" / "python3.12" / "site-packages" / "torch-2.9.1+cu130.dist-info").mkdir(parents=True)
    assert build.torch_of(python) == "2.9.1+cu130"


def test_look_ignores_a_record_whose_python_is_missing(tmp_path: Path) -> None:
    script = (
        "import json\nfrom remote.node.environments import build\nprint(json.dumps(build.state_of('k')))\n"
    )

    def look() -> object:
        environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-B", "-c", script], env=environment, capture_output=True, check=True
        )
        return json.loads(done.stdout)["ready"]

    home = (
        tmp_path / ".gpuctl-node" / "envs" / "k-{}-py{}-{}".format(platform.machine(), *sys.version_info[:2])
    )
    (home / "venv" / "bin").mkdir(parents=True)
    record = {"key": "k", "python": str(home / "venv" / "bin" / "python"), "bytes": 5}
    assert look() is None
    (home / "ready.json").write_text(json.dumps(record))
    assert look() is None
    (home / "venv" / "bin" / "python").symlink_to(sys.executable)
    assert look() == record
    (home / "ready.json").write_text('{"key": "k", "pyth')
    assert look() is None


FAKE_UV = """\
#!/bin/sh
[ "$1" = --version ] && echo "uv 0.13.9" && exit
[ "$1" = venv ] && mkdir -p ../venv/bin ../venv/lib/python3.11/site-packages/torch-2.13.0.dist-info && \
    echo "version_info = 3.11.7" > ../venv/pyvenv.cfg && exit
case "$*" in
    *--torch-backend*)
        echo "cause: Failed to fetch: https://download.pytorch.org/whl/cpu/torch/"
        echo "cause: error sending request"
        exit 2;;
esac
echo "resolved from $UV_DEFAULT_INDEX"
"""


FAKE_MICROMAMBA = """\
#!/bin/sh
echo "$0 $*" >&2
venv=$4
mkdir -p $venv/bin $venv/conda-meta $venv/lib/python3.12/site-packages/torch-2.13.0.dist-info
cp "$6" $venv/made-of
touch $venv/conda-meta/python-3.12.4-h99e_1_cpython.json
ln -s /bin/true $venv/bin/python
"""


def answers_of(
    home: Path, program: str = "uv", text: str = FAKE_UV, **changed: object
) -> list[dict[str, object]]:
    """Return the node's answers for a build with an existing `program`."""
    (home / ".local" / "bin").mkdir(parents=True)
    (home / ".local" / "bin" / program).write_text(text)
    (home / ".local" / "bin" / program).chmod(0o700)
    request = {
        "key": "k", "conda": None, "wheels": {}, "env": {}, "deadline_s": 60.0,
        "files": {"requirements.txt": "torch"},
        "commands": [["venv"], ["pip", "install", "--torch-backend", "cpu"]], "instead": ["pip", "install"],
        "indexes": {"PIP_INDEX_URL": "https://me:s@cret@index.corp/simple"}, **changed,
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-B", "-c", "from remote.node.__main__ import run; run(['environment'])"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
    ) as part:  # fmt: skip
        part.stdin.write(frames.encode(request))
        part.stdin.flush()
        output = part.stdout.read().decode()  # the build would end with its standard input
    assert "cret" not in output
    return [json.loads(line) for line in output.splitlines()]


def test_torch_comes_from_the_nodes_index_where_pytorchs_is_not_reached(tmp_path: Path) -> None:
    *output, last = answers_of(tmp_path)
    texts = [item["text"] for item in output if item["t"] == frames.PROGRESS]
    assert "download.pytorch.org is not reached from here: installing from index.corp instead" in texts
    assert "resolved from https://index.corp/simple" in texts, "what addresses hold of logins is not told"
    ready = last["ready"]
    assert isinstance(ready, dict)
    assert (ready["torch_index"], ready["torch"]) == ("index.corp", "2.13.0")


def test_index_that_is_not_reached_fails_a_build_that_has_no_other(tmp_path: Path) -> None:
    last = answers_of(tmp_path, instead=None)[-1]
    assert (last["t"], last["step"]) == (frames.FAILED, "uv pip install")


def of_conda(home: Path, program: str) -> dict[str, object]:
    """Return the node's last answer on an environment file if only this program exists."""
    file = {"environment.yml": "dependencies: [pytorch]"}
    return answers_of(home, program, FAKE_MICROMAMBA, conda="environment.yml", files=file, commands=[])[-1]


@pytest.mark.skipif(build.conda_program() is not None, reason="needs a machine without conda")
def test_environment_file_is_installed_by_the_program_of_condas_that_is_there(tmp_path: Path) -> None:
    made = of_conda(tmp_path, "micromamba")["ready"]
    assert isinstance(made, dict)
    assert (made["torch"], made["python_version"]) == ("2.13.0", "3.12.4")
    venv = Path(made["python"]).parents[1]
    assert (venv / "made-of").read_text() == "dependencies: [pytorch]"


@pytest.mark.skipif(build.conda_program() is not None, reason="needs a machine without conda")
def test_environment_file_is_refused_with_the_way_on_where_no_program_is_there(tmp_path: Path) -> None:
    failed = of_conda(tmp_path, "other")
    assert failed["t"] == frames.FAILED
    assert "none of micromamba, pixi, mamba and conda is on this node, and environment.yml needs" in str(
        failed["tail"]
    )
    assert "gpuctl exec -- 'mkdir -p ~/.local && curl" in str(failed["tail"])


@pytest.mark.skipif(build.conda_program() is not None, reason="needs a machine without conda")
@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("micromamba", ["create --yes --prefix VENV --file environment.yml"]),
        ("pixi", ["init --import environment.yml", "install"]),
        ("conda", ["env create --prefix VENV --file environment.yml"]),
    ],
)
def test_commands_of_condas_programs_are_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, lines: list[str]
) -> None:
    program = tmp_path / "bin" / kind
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setenv("HOME", str(tmp_path))
    result = build.conda_commands("environment.yml", tmp_path)
    texts = [" ".join(argv).replace(str(tmp_path / "venv"), "VENV") for argv in result]
    assert texts == [f"{program} {line}" for line in lines]
