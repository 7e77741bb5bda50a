"""The output of a library's call: lines go to a function and a logger, answers come from the caller."""

import io
import logging
from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING, TextIO, TypeAlias

from gpuctl.app import App
from gpuctl.errors import Usage
from gpuctl.global_options import Options
from gpuctl.output import Output
from gpuctl.text import clean_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

Confirm: TypeAlias = bool | Callable[[str], bool] | None
"""Answer to a question about money, or a function that gets the question. Default: no answer."""
Progress: TypeAlias = Callable[[str], object] | None
"""Function that gets each line on the work in progress, one at a time, from several threads."""

LOGGER = logging.getLogger("gpuctl")
LOGGER.addHandler(logging.NullHandler())  # without a handler, Python prints warnings


class SilentOutput(Output):
    """Output of a program: lines for people go to `progress` and to the logger `gpuctl`."""

    def __init__(self, options: Options, *, confirm: Confirm = None, progress: Progress = None) -> None:
        super().__init__(options, stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO())
        self._confirm = confirm
        self._progress = progress
        self._lock = RLock()

    def table(self, table: "RenderableType", *, aside: bool = False) -> None:
        """Report the lines of a table that is no result; results are returned."""
        if aside and (self._progress is not None or LOGGER.isEnabledFor(logging.INFO)):
            console = self.console(self.stderr)
            with console.capture() as captured:
                console.print(table)
            self.say("\n".join(line.rstrip() for line in captured.get().splitlines()))

    def say(self, text: str, style: str = "") -> None:  # noqa: ARG002 - there are no colours
        """Report lines for people."""
        self._tell(logging.INFO, text)

    def detail(self, text: str) -> None:
        """Log details for a search for a cause."""
        LOGGER.debug("%s", clean_lines(text))

    def error(self, message: str) -> None:
        """Report an error that does not end the work."""
        self._tell(logging.WARNING, message)

    @property
    def asks(self) -> bool:
        """True: a function of the caller answers questions."""
        return callable(self._confirm)

    @property
    def owns_process(self) -> bool:
        """False, as other threads of the program may print."""
        return False

    @property
    def offers(self) -> bool:
        """False, as the caller's function answers questions about money only."""
        return False

    @property
    def live(self) -> bool:
        """False, as no display is updated."""
        return False

    def confirm(self, question: str, *, paid: bool = False) -> bool:
        """Return the caller's answer to a question about money, and yes to any other question.

        Raises Usage if the caller gave no answer.
        """
        if not paid:
            return True
        if self._confirm is None:
            raise Usage(
                f"{question} Nobody was asked: pass confirm=True, or a function that gets this question and "
                "returns True or False."
            )
        return bool(self._confirm(question)) if callable(self._confirm) else self._confirm

    def _tell(self, level: int, text: str) -> None:
        text = clean_lines(text)
        with self._lock:
            LOGGER.log(level, "%s", text)
            if self._progress is not None:
                try:
                    self._progress(text)
                except (Exception, SystemExit):
                    # The lines come from the work itself, which must not fail with `progress`.
                    LOGGER.warning("progress raised, and the work goes on", exc_info=True)

    def _write(self, stream: TextIO, text: str) -> None:
        """Print nothing."""


def silent_app(cluster: str, *, confirm: Confirm = None, progress: Progress = None) -> App:
    """Return the app of a call of the library. `confirm=True` stands for --yes."""
    options = Options(cluster=cluster, yes=confirm is True)
    return App(options, SilentOutput(options, confirm=confirm, progress=progress))
