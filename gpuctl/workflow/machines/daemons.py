"""End the daemons that launchers keep on machines between runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inventories.disk.store import ClusterFolder
from inventories.machine import Machine
from remote.launchers import LAUNCHERS, launcher_of


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The result of ending a launcher's daemons on a machine."""

    launcher: str
    """Its name in LAUNCHERS."""
    node: str
    error: Exception | None

    @property
    def problem(self) -> str | None:
        """Return a sentence on why they may still run. `None`: they have ended."""
        if self.error is None:
            return None
        return f"{launcher_of(self.launcher).title} may still run there: {self.error}"


def end_daemons(
    folder: ClusterFolder, machines: Sequence[Machine], launchers: Iterable[str] = tuple(LAUNCHERS)
) -> list[Ended]:
    """End the daemons of launchers on these machines, all at once. Empty where they never had any."""
    from remote.sessions.connect import ask_each

    done: list[Ended] = []
    for name in launchers:
        launcher = launcher_of(name)
        candidates = [machine for machine in machines if launcher.may_have_daemons(folder, machine)]
        outcomes = ask_each(launcher.end_daemons, candidates, folder)
        done += [Ended(launcher=name, node=outcome.node, error=outcome.error) for outcome in outcomes]
    return done
