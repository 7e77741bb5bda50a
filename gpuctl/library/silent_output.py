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
"""The answer to a question about money, or what is asked for it. None: nobody is."""
Progress: TypeAlias = Callable[[str], object] | None
"""Gets each line on what is being done, one at a time, from several threads."""

LOGGER = logging.getLogger("gpuctl")
LOGGER.addHandler(logging.NullHandler())  # without any, Python prints warnings


class SilentOutput(Output):
    """Prints nothing: what a person would read goes to `progress` and to the logger `gpuctl`."""

    def __init__(self, options: Options, *, confirm: Confirm = None, progress: Progress = None) -> None:
        super().__init__(options, stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO())
        self._confirm = confirm
        self._progress = progress
        self._lock = RLock()

    def table(self, table: "RenderableType", *, aside: bool = False) -> None:
        """Tell a table's lines where it is no result; results are returned."""
        if aside and (self._progress is not None or LOGGER.isEnabledFor(logging.INFO)):
            console = self.console(self.stderr)
            with console.capture() as captured:
                console.print(table)
            self.say("\n".join(line.rstrip() for line in captured.get().splitlines()))

    def say(self, text: str, style: str = "") -> None:  # noqa: ARG002 - there are no colours
        """Tell lines for people."""
        self._tell(logging.INFO, text)

    def detail(self, text: str) -> None:
        """Log what only a search for a cause needs."""
        LOGGER.debug("%s", clean_lines(text))

    def error(self, message: str) -> None:
        """Tell what went wrong and did not end the work."""
        self._tell(logging.WARNING, message)

    @property
    def asks(self) -> bool:
        """True: a function of the caller's answers questions."""
        return callable(self._confirm)

    @property
    def owns_process(self) -> bool:
        """False: other threads of the program print what they like."""
        return False

    @property
    def offers(self) -> bool:
        """False: the caller's function is asked about money; what nobody called for is not done."""
        return False

    @property
    def live(self) -> bool:
        """False: nothing is kept up to date."""
        return False

    def confirm(self, question: str, *, paid: bool = False) -> bool:
        """Have the caller's function answer what costs money; what a program calls for by name it wants.

        Raises Usage where there is no answer.
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
                    # The lines come from within the work, which is not to fail of it.
                    LOGGER.warning("progress raised, and the work goes on", exc_info=True)

    def _write(self, stream: TextIO, text: str) -> None:
        """Print nothing."""


def silent_app(cluster: str, *, confirm: Confirm = None, progress: Progress = None) -> App:
    """What the workflow of a library's call works with; `confirm=True` stands for --yes."""
    options = Options(cluster=cluster, yes=confirm is True)
    return App(options, SilentOutput(options, confirm=confirm, progress=progress))
