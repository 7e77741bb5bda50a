"""The display of a working command: phases, nodes, the job's progress, its log.

On a terminal a `LiveView` updates a few lines; elsewhere (CI, a pipe) a `PlainView` prints lines. Both write to
stderr, take calls from any thread, and are silent once they are closed.
"""

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gpuctl.text import bar, clean, clean_lines, duration
from remote.runs.observer import Observer, Outcome

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpuctl.output import Output
    from gpuctl.run_results.progress import Progress

PROGRESS_EVERY_S = 5.0
"""A plain view's lines about progress are at least this far apart."""
EPOCH_EVERY_S = 1.0
REFRESHES_PER_S = 6.0
NODES_SHOWN = 8
BAR_WIDTH = 24


class View(Observer):
    """The display of a working command. A context manager; its methods never raise on their arguments."""

    def __init__(self, output: "Output", *, logs: bool) -> None:
        self._output = output
        self._logs = logs
        self._closed = False
        self._begun: Progress | None = None
        """`None`: no line of a job came yet; many commands show none."""

    def __enter__(self) -> Self:
        """Begin to show."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """End the last phase, and be silent from now on."""
        raise NotImplementedError

    @property
    def _progress(self) -> "Progress":
        """The job's progress, for what takes a line of it."""
        if self._begun is None:
            from gpuctl.run_results.progress import Progress

            self._begun = Progress()
        return self._begun

    def log(self, rank: int | None, node: str, line: str) -> None:
        """Show a line of a rank's log, and the progress in it; a line of a launcher with --verbose only."""
        self._log_progress(rank, line)
        if self._logs and (rank is not None or self._output.options.verbose):
            shown = log_line(rank, node, line)
            self._output.logged.append(shown)
            self.note(shown)

    def _log_progress(self, rank: int | None, line: str) -> None:
        """Show the progress in a line of a log."""
        raise NotImplementedError


def open_view(output: "Output", *, logs: bool) -> View:
    """The view for this output: live on a terminal, else plain. `logs`: whether it shows the ranks' logs."""
    return LiveView(output, logs=logs) if output.live else PlainView(output, logs=logs)


class PlainView(View):
    """Lines on stderr."""

    def __init__(self, output: "Output", *, logs: bool) -> None:
        super().__init__(output, logs=logs)
        self._lock = threading.Lock()
        self._phase: tuple[str, float] | None = None
        self._shown_at = 0.0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        with self._lock:
            interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
            self._end_phase("interrupted" if interrupted else "failed" if kind else "done")
            self._closed = True

    def phase(self, name: str, text: str, *, previous: Outcome = "done") -> None:
        """Print the end of the previous phase, and the beginning of this one."""
        with self._lock:
            if self._phase is None or self._phase[0] != name:
                self._end_phase(previous)
                self._phase = (name, time.monotonic())
            self._say(f"{name}: {text}")

    def node(self, name: str, text: str) -> None:
        """Print a node's current action."""
        self.note(f"{name}: {text}")

    def metric(self, rank: int, line: Mapping[str, Any]) -> None:
        """Print how far the job is, now and then."""
        with self._lock:
            if self._progress.update(rank, line, time.monotonic()):
                self._show_progress(EPOCH_EVERY_S if line.get("event") == "epoch" else PROGRESS_EVERY_S)

    def _log_progress(self, rank: int | None, line: str) -> None:
        """Show it where the line itself is not shown."""
        with self._lock:
            if not self._logs and self._progress.log(rank, line, time.monotonic()):
                self._show_progress(PROGRESS_EVERY_S)

    def script_file(self, path: str, body: bytes, *, begins: bool) -> None:
        """Print how far the job is by a file of the script's libraries, now and then."""
        with self._lock:
            if self._progress.script_file(path, body, time.monotonic(), begins=begins):
                self._show_progress(PROGRESS_EVERY_S)

    def _show_progress(self, every_s: float) -> None:
        now, state = time.monotonic(), self._progress.state()
        if now - self._shown_at >= every_s and (parts := state.where() + state.figures()):
            self._shown_at = now
            self._say(", ".join(parts))

    def note(self, text: str) -> None:
        """Print a line."""
        with self._lock:
            self._say(text)

    def _end_phase(self, outcome: Outcome) -> None:
        if self._phase:
            name, began = self._phase
            self._phase = None
            self._say(f"{name}: {outcome} in {duration(time.monotonic() - began)}")

    def _say(self, text: str) -> None:
        if not self._closed:
            self._output.say(text)


class LiveView(View):
    """A few lines at the bottom of the terminal that are kept up to date; what stays is printed above them."""

    def __init__(self, output: "Output", *, logs: bool) -> None:
        from rich.live import Live

        super().__init__(output, logs=logs)
        self._console = output.console(output.stderr)
        self._printing = threading.RLock()
        """Held while something is printed above the live lines, and while the view is closed."""
        self._state = threading.Lock()
        """Held for moments, and never while rich works: rich's own thread takes it to draw."""
        self._phase: tuple[str, str, float] | None = None
        self._nodes: dict[str, str] = {}
        self._live = Live(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._output.above = self.note
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        with self._printing:
            self._end_phase("failed" if kind else "done")
            self._closed = True
            self._output.above = None
            self._live.stop()

    def phase(self, name: str, text: str, *, previous: Outcome = "done") -> None:
        """Begin a phase; the previous one stays as a line with its outcome and time."""
        with self._printing:
            with self._state:
                began = self._phase[2] if self._phase and self._phase[0] == name else None
                if began is not None:
                    self._phase = (name, text, began)
                    self._nodes.clear()
                    return
            self._end_phase(previous)
            with self._state:
                self._phase = (name, text, time.monotonic())

    def node(self, name: str, text: str) -> None:
        """Show a node's current action."""
        with self._state:
            self._nodes.pop(name, None)
            self._nodes[name] = clean(text)

    def metric(self, rank: int, line: Mapping[str, Any]) -> None:
        """Show how far the job is."""
        with self._state:
            self._progress.update(rank, line, time.monotonic())

    def _log_progress(self, rank: int | None, line: str) -> None:
        with self._state:
            self._progress.log(rank, line, time.monotonic())

    def script_file(self, path: str, body: bytes, *, begins: bool) -> None:
        """Show how far the job is by a file of the script's libraries."""
        with self._state:
            self._progress.script_file(path, body, time.monotonic(), begins=begins)

    def note(self, text: str) -> None:
        """Print a line above the live ones."""
        self._print(clean_lines(text), "")

    def _end_phase(self, outcome: Outcome) -> None:
        with self._state:
            phase, self._phase = self._phase, None
            self._nodes.clear()
        if phase:
            name, text, began = phase
            mark, style = ("✓", "green") if outcome == "done" else ("✗", "red")
            self._print(f"{mark} {name:<9} {duration(time.monotonic() - began):>9}  {text}", style)

    def _print(self, text: str, style: str) -> None:
        """Print a line above the live ones; the first character in `style`."""
        from rich.text import Text

        with self._printing:
            if self._closed:
                return
            line = Text(text)
            if style:
                line.stylize(style, 0, 1)
            self._console.print(line, soft_wrap=True)

    def _render(self) -> "RenderableType":
        """The live lines as they are now."""
        from rich.text import Text

        with self._state:
            phase, nodes, state = self._phase, dict(self._nodes), self._begun and self._begun.state()
        lines = []
        if phase:
            name, text, began = phase
            spinner = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"[int(time.monotonic() * 10) % 10]
            lines.append(f"{spinner} {name:<9} {duration(time.monotonic() - began):>9}  {text}")
        hidden = len(nodes) - NODES_SHOWN
        lines += [f"    {name}  {nodes[name]}" for name in sorted(list(nodes)[-NODES_SHOWN:])]
        if hidden > 0:
            lines.append(f"    and {hidden} more")
        if state:
            where, figures = state.where(), state.figures()
            if state.fraction is not None:
                where.insert(0, bar(state.fraction, BAR_WIDTH))
            lines += ["  " + "  ".join(parts) for parts in (where, figures) if parts]
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def log_line(rank: int | None, node: str, line: str) -> str:
    """`rank 0 │ text`, `node-1 │ text` for the launcher's."""
    source = node if rank is None else f"rank {rank}"
    return f"{source} │ {clean(line)}"
