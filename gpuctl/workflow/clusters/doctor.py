"""`doctor`: what would make the next command fail, and the fix. Looks, and changes nothing."""

import os
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpuctl.app import App
from gpuctl.command_results.upkeep import DoctorFinding, DoctorResult
from inventories.disk.store import ClusterFolder
from inventories.errors import InventoryError
from inventories.specs.spec import Spec
from provision.errors import ProvisionError
from provision.findings import Finding


def doctor(app: App, spec: Spec) -> DoctorResult:
    """Return the document of `doctor --json`. Raises UnknownShape and UnknownProvider."""
    folder = app.store.cluster(spec.cluster)
    findings = [*_check_computer(app.store.home, folder), *_check_cloud(app, folder, spec)]
    return DoctorResult(
        ok=all(finding.ok is not False for finding in findings),
        findings=tuple(DoctorFinding(f.what, f.ok, f.detail, f.fix or None) for f in findings),
    )


def show(app: App, findings: Sequence[DoctorFinding]) -> None:
    """Print a line per finding, and the fix if it needs one."""
    marks = {True: ("✓", "green"), False: ("✗", "red"), None: ("?", "yellow")}
    for finding in findings:
        mark, style = marks[finding.ok]
        app.output.say(f"{mark} {finding.subject}: {finding.detail}", style)
        if finding.fix and finding.ok is not True:
            app.output.say(f"  {finding.fix}")


def _check_computer(home: Path, folder: ClusterFolder) -> Iterator[Finding]:
    """Check this computer."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding(what="Python", ok=True, detail=f"{version} ({sys.executable})")
    ssh = shutil.which("ssh")
    yield Finding(
        what="ssh client",
        ok=ssh is not None,
        detail=ssh or "not found",
        fix="Install OpenSSH's client: `gpuctl ssh` and the printed configuration need it.",
    )
    if not home.exists():
        yield Finding(what="files of gpuctl", ok=True, detail=f"none yet in {home}")
        return
    writable = os.access(home, os.W_OK | os.X_OK)
    yield Finding(
        what="files of gpuctl",
        ok=writable,
        detail=f"{home}" + ("" if writable else " can't be written"),
        fix="Give yourself access there, or set GPUCTL_HOME to another folder of your own.",
    )
    if folder.key_path.exists():
        open_to_others = stat.S_IMODE(folder.key_path.stat().st_mode) & 0o077
        yield Finding(
            what="key file",
            ok=not open_to_others,
            detail=f"{folder.key_path}" + (" can be read by others" if open_to_others else ""),
            fix=f"chmod 600 '{folder.key_path}'",
        )
    try:
        inventory = folder.load() if folder.exists() else None
    except InventoryError as error:
        yield Finding(what=f"cluster {folder.name}", ok=False, detail="unreadable", fix=str(error))
        return
    detail = f"{len(inventory.machines)} machines of {inventory.provider}" if inventory else "none yet"
    yield Finding(what=f"cluster {folder.name}", ok=True, detail=detail)


def _check_cloud(app: App, folder: ClusterFolder, spec: Spec) -> Iterator[Finding]:
    """Check the account of the spec or of the cluster. Raises UnknownShape and UnknownProvider."""
    from gpuctl.workflow.clusters.choose_provider import choose_provider, provider_name, resolve_shape
    from gpuctl.workflow.clusters.defaults import with_defaults
    from provision.clouds import check_name
    from provision.pricing.catalog import infer
    from provision.registry import load

    if spec == replace(spec, provider=None, shape=None, context=None) and not folder.exists():
        yield Finding(
            what="cloud",
            ok=None,
            detail="not looked at",
            fix="Say which: `gpuctl doctor --shape S --count N` checks the account for just those machines.",
        )
        return
    spec = resolve_shape(spec)
    # Machines that are named are asked about for their own sake, whatever this cluster is. A name that nobody has is
    # no finding, but wrong input.
    named = infer(spec) if spec != replace(spec, provider=None, shape=None, context=None) else None
    if named is not None:
        check_name(named)
    try:
        if named and provider_name(folder) not in (None, named):  # take the folder of no cluster
            folder = ClusterFolder(folder.path.with_name(".none"))
        provider = load(named or choose_provider(folder, spec), folder)
        spec, defaults = with_defaults(app, spec, folder, provider)
        yield from (Finding(what="defaults", ok=None, detail=note) for note in defaults)
        yield from provider.check(spec)
    except (ProvisionError, InventoryError) as error:
        detail, _, fix = str(error).partition(". ")
        yield Finding(what="cloud", ok=False, detail=detail.rstrip("."), fix=fix)
