"""The report of runs, as a page: its content, its validity, and what hostile texts do in a real browser."""

import html
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from support import a_result, a_run

from gpuctl.command_line import cli
from gpuctl.errors import Usage
from gpuctl.run_report.page import report_page, write_report
from inventories.disk.store import RunFolder
from inventories.runs.end_reasons import Reason
from inventories.runs.result import FirstError, RankResult, Result, Seconds, Share, StepMs, TrainSummary
from inventories.runs.run import RunOptions

NOW = datetime(2026, 11, 28, 17, 0, tzinfo=UTC)
TRAIN = TrainSummary(
    samples_per_s=8412.0, step_ms=StepMs(p50=3.1), share=Share(compute=0.6, communication=0.3, data=0.1)
)
HOSTILE = (
    "</title></text><script>document.title='HACKED'</script><img src={url}/img onerror=alert(1)>"
    "<style>@import '{url}/css';</style>\"' onload='x' {{{{ 7 * 7 }}}} \x00\x1b]0;x\x07\ufffe<!--"
)


def saved(folder: Path, at: int, loss: Sequence[float], **options: object) -> Result:
    """Return the result of a run whose launch has a record in the folder."""
    path = folder / f"20261128-17000{at % 10}-{at:04x}"
    (path / "logs").mkdir(parents=True)
    labels = RunOptions(**options)  # type: ignore[arg-type]
    RunFolder(path).save_run(a_run(run=path.name, args=("--lr", str(0.1 * (at + 1))), options=labels))
    return a_result(
        run=path.name,
        name=labels.name,
        note=labels.note,
        tags=labels.tags,
        dir=str(path),
        seconds=Seconds(total=60.0 + at, train=50.0),
        ranks=(RankResult(rank=0, local_rank=0, node="gpu-0", exit_code=0),),
        train=replace(TRAIN, loss=tuple(loss), loss_by="step", samples_per_s=8000.0 + at),
    )


def runs(folder: Path, count: int) -> list[Result]:
    return [
        saved(
            folder,
            at,
            tuple(2.0 / step + 0.1 * at for step in range(1, 31)),
            name=f"run-{at}",
            tags={"sweep": "lr"},
        )
        for at in range(count)
    ]


def hostile(folder: Path, url: str) -> list[Result]:
    """Return two runs, one of which has a hostile text wherever a script or a person can put one."""
    words = HOSTILE.format(url=url)
    good, bad = runs(folder, 2)
    error = FirstError(rank=0, node="gpu-0", message=words, reason=Reason.EXIT_CODE, detail=words)
    path = Path(bad.dir)
    (path / "logs" / "rank-0.log").write_bytes(words.encode() + b"\n\xff\xfe\n")
    options = RunOptions(name=words, note=words, tags={"a": words}, python=words, pip=(words,))
    RunFolder(path).save_run(a_run(run=path.name, script=words, args=(words, f"--{words}"), options=options))
    train = replace(bad.train, model=words, dataset=words, metrics={words: 1.0}, loss_name=words)
    bad = replace(
        bad, script=words, name=words, note=words, tags={"a": words}, status="failed", first_error=error
    )
    return [good, replace(bad, train=replace(train, loss=(1.0, float("nan"))))]


class Elements(HTMLParser):
    """Counts a page's elements and gathers its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action", "data")]


def test_report_shows_the_best_the_differences_and_how_to_run_again(tmp_path: Path) -> None:
    page = report_page(runs(tmp_path, 6), NOW)
    assert "<title>6 runs of my.py</title>" in page
    best = "best of 6 runs by last loss: run-0 (lr 0.1) with 0.067; next: run-1 (lr 0.2) with 0.167"
    assert f'<p class="lead">{best}</p>' in page
    assert len(re.findall(r'<tr class="best">', page)) == 1
    assert "<summary>run-3 (lr 0.4) <span" in page
    assert page.count("<polyline") == 6
    assert "<h2>Training loss (log axis)</h2>" in page
    assert "gpuctl train --name run-3 --tag sweep=lr my.py --lr 0.4" in page
    assert len(page) < 100_000


def test_section_has_the_id_once_a_plain_time_and_no_empty_columns(tmp_path: Path) -> None:
    result = saved(tmp_path, 0, [1.0])
    page = report_page([result, saved(tmp_path, 1, [2.0])], NOW)
    (summary, _) = re.findall("<summary>(.*)</summary>", page)
    assert summary.count(result.run) == 1
    assert "<dt>began</dt><dd>2026-11-21 05:46 UTC</dd>" in page
    assert "exit</th></tr>" in page
    assert "2 runs: 2 succeeded; 2 min 1 s in total" in page


def test_points_and_commands_of_a_report_are_whole(tmp_path: Path) -> None:
    result = saved(tmp_path, 0, tuple(1 / step for step in range(1, 2001)))
    words = ",".join(map(str, range(4000)))
    RunFolder(Path(result.dir)).save_run(a_run(run=result.run, args=("--ids", words, "<b>", "--api-key=KEY")))
    page = report_page([result], NOW)
    (points,) = re.findall('points="([^"]*)"', page)
    assert len(points.split()) == 2000
    assert f"--ids {words} &#39;&lt;b&gt;&#39; &#39;--api-key=***&#39;</pre>" in page
    assert "KEY" not in page


@pytest.mark.parametrize(
    ("run", "options", "line"),
    [
        (
            {},
            {
                "name": "a b",
                "env": ("TOKEN",),
                "pip": ("x", "git+https://me:secret@h/y"),
                "stop_grace_s": 90.0,
            },
            "gpuctl train --name 'a b' --pip x --pip git+https://h/y --stop-grace 90s --env TOKEN my.py --lr 0.1",
        ),
        (
            {"script": "built-in", "cluster": "work", "mode": "ray"},
            {"nproc_per_node": 2, "device": "cpu", "root": "/srv"},
            "gpuctl train --cluster work --mode ray --nproc-per-node 2 --device cpu -- --lr 0.1",
        ),
        (
            {},
            {"tags": {"sweep": "20261121-054640-5d00", "data": "v2"}},
            "gpuctl train --tag data=v2 my.py --lr 0.1",
        ),
        (
            {"script": "-m pkg.fit"},
            {"install_project": False},
            "gpuctl train --no-install-project -m pkg.fit --lr 0.1",
        ),
    ],
)
def test_report_has_the_command_without_secrets(
    tmp_path: Path, run: dict[str, str], options: dict[str, object], line: str
) -> None:
    result = saved(tmp_path, 0, [1.0])
    record = a_run(run=result.run, args=("--lr", "0.1"), options=RunOptions(**options), **run)  # type: ignore[arg-type]
    RunFolder(Path(result.dir)).save_run(record)
    page = report_page([result], NOW)
    assert f"<pre>\n{html.escape(line)}</pre>" in page.replace("&#39;", "&#x27;")
    assert "secret" not in page


@pytest.mark.parametrize("count", [1, 2, 12])
def test_report_loads_nothing_and_is_valid_html(tmp_path: Path, count: int) -> None:
    page = report_page(runs(tmp_path, count), NOW)
    elements = Elements(page)
    assert not {"script", "img", "link", "iframe", "object", "form", "base"} & set(elements.tags)
    assert all(address.startswith("#") for address in elements.addresses)
    assert "default-src 'none'" in page
    assert not re.search(r"url\((?!#inside\))|@import|https?:", page)
    html5lib = pytest.importorskip(
        "html5lib", reason="html5lib, which finds errors of HTML, is not installed"
    )
    html5lib.HTMLParser(strict=True).parse(page)


def test_hostile_texts_are_texts(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    plain, elements = (
        Elements(report_page(runs(first, 2), NOW)),
        Elements(report_page(hostile(second, "x"), NOW)),
    )
    assert set(elements.tags) <= {*plain.tags, "p", "pre"}
    assert elements.names <= {*plain.names, "class"}
    page = report_page(hostile(tmp_path / "third", "x"), NOW)
    assert "{{ 7 * 7 }}" in page
    assert not re.search("[\x00\x1b\ufffe]", page)
    html5lib = pytest.importorskip(
        "html5lib", reason="html5lib, which finds errors of HTML, is not installed"
    )
    html5lib.HTMLParser(strict=True).parse(page)


def test_report_of_runs_without_values_has_no_charts(tmp_path: Path) -> None:
    bare = replace(
        runs(tmp_path, 1)[0], train=TrainSummary(), ranks=(), dir=str(tmp_path / "gone"), status="running"
    )
    page = report_page([bare], NOW)
    assert "<svg" not in page
    assert "Run it again" not in page


def test_report_is_written_to_a_page_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = write_report(runs(tmp_path, 1), tmp_path / "a.html")
    assert report == f"wrote {tmp_path}/a.html: a report of 1 run; open it in a browser"
    for name, words in (("a.pdf", "Name it, as in -o report.html"), ("no/a.html", "Make it with `mkdir -p")):
        with pytest.raises(Usage, match=re.escape(words)):
            write_report([], tmp_path / name)
    assert cli.main(["report"]) == 2
    assert "--output" in capsys.readouterr().err


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """Return the address of a server on loopback, and the paths that were asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}", paths
    httpd.shutdown()
    httpd.server_close()


@pytest.mark.slow
def test_browser_shows_the_report_and_runs_nothing_of_it(
    tmp_path: Path, server: tuple[str, list[str]]
) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no chromium or google-chrome, which shows the page")
    url, paths = server
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    page.write_text(report_page(hostile(tmp_path, url), NOW))

    def shown(*options: str, file: Path = page) -> subprocess.CompletedProcess[str]:
        command = [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            *options,
        ]
        profile = f"--user-data-dir={tmp_path}/profile"
        return subprocess.run(
            [*command, profile, file.as_uri()], capture_output=True, text=True, check=True, timeout=120,
            env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip

    dumped = shown("--dump-dom")
    assert "HACKED'</title>" not in dumped.stdout
    assert "<title>HACKED</title>" not in dumped.stdout
    assert not {"img", "script"} & set(Elements(dumped.stdout).tags)
    assert "CONSOLE" not in dumped.stderr, "a violation of the page's policy, or another error"
    shown(f"--screenshot={picture}", "--window-size=1000,1200")
    assert picture.stat().st_size > 20_000
    assert paths == []
    # The same words without escapes do ask the server: the check can fail.
    page.write_text(f"<img src={url}/img>")
    shown("--dump-dom")
    assert paths == ["/img"]
