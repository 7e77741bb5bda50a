"""`up`: spec → plan → machines → reachable nodes. Again: converges."""

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gpuctl.app import App
from gpuctl.command_results.clusters import SetUp, UpResult
from gpuctl.errors import Attention, Declined, Failed
from gpuctl.workflow.clusters import up_plan
from gpuctl.workflow.clusters.choose_provider import choose_provider, folder_to_plan, resolve_shape
from gpuctl.workflow.clusters.defaults import with_defaults
from gpuctl.workflow.clusters.ends import ends_of, is_relied_on, record_end_timers, warning
from gpuctl.workflow.clusters.make_machines import keep, make
from gpuctl.workflow.clusters.spending_limits import (
    refuse_over_limits,
    turn_to_launch,
    unchecked_limits,
    warn_over_limits,
)
from gpuctl.workflow.machines.idle import idle_state
from gpuctl.workflow.machines.inventory_files import HostKeys, pin_host_keys
from gpuctl.workflow.machines.log_in import log_in
from gpuctl.workflow.machines.notify import command_succeeded, send_from_here, watch_machines
from gpuctl.workflow.machines.reach import (
    BOOT_TIMEOUT_S,
    Boot,
    Reached,
    gpu_hint,
    gpu_problems,
    never_ready,
    reach,
)
from gpuctl.workflow.machines.setup import plan_setup, set_up, setup_hint
from gpuctl.workflow.machines.setup_state import READY, SETTLED, Setup, setup_steps, unprepared_note
from gpuctl.workflow.runs.idle_nodes import refuse_to_end_busy
from inventories.clocks import passed_s
from inventories.disk.store import ClusterFolder
from inventories.errors import InvalidInput, InventoryError
from inventories.machine import Inventory, Machine
from inventories.specs.gpu_driver import NO_DRIVER
from inventories.specs.spec import Spec
from inventories.text import plural
from provision.clouds import RENTED
from provision.errors import BadCredentials, ProvisionError, TermsRefused, Unclear, UnknownProfile
from provision.provider import AdoptingProvider, OutliningProvider, Plan, Provider
from provision.records import EndGuard
from provision.registry import load
from provision.rented.ends import IDLE, POWER_OFF
from provision.rented.launch.user_data import EXPIRE_UNIT
from provision.rented.planning.caller_address import AddressUnknown

if TYPE_CHECKING:
    from gpuctl.workflow.runs.unfinished_runs import ClusterRuns


def up(
    app: App,
    spec: Spec,
    host_keys: HostKeys,
    *,
    runs: "ClusterRuns",
    wait: bool = True,
    boot_timeout_s: float | None = None,
    for_run: bool = False,
) -> UpResult:
    """Make the cluster as requested.

    `runs`: the cluster's runs, as their nodes reported them; machines of an active run are not ended. `wait`: also
    connect to the machines; otherwise the first command that needs them does. `for_run`: the machines are a run's: a
    person agreed to them before, and the caller ends unusable ones. `boot_timeout_s`: limit for the boot of rented
    machines; `None`: BOOT_TIMEOUT_S. Raises Attention for machines that exist but can't be used yet.
    """
    began = passed_s()
    spec = resolve_shape(spec)
    folder = app.store.cluster(spec.cluster)
    provider, spec, defaults = _provider(app, folder, spec, boot_timeout_s)
    with folder.lock("up", on_wait=app.output.say), ExitStack() as launch:
        fresh = not folder.exists() and not folder.journal.path.exists()
        try:
            before = _inventory(folder)
            plan = provider.plan(spec, before)
            ending = _ending(provider, plan)
            check = partial(_refuse_to_end, app, folder, before, ending, runs, for_run=for_run)
            check()
            setup = _setup_of(app, folder, plan)
            asks = app.output.asks and not for_run
            if not asks:
                launch.enter_context(turn_to_launch(app, plan))
            plan = replace(plan, notes=(*plan.notes, *defaults, *refuse_over_limits(app, folder, plan)))
            plan = plan if for_run else _ask(app, plan, setup, ending)
            if asks:  # nobody waits while a person thinks, and a run may have begun
                check()
                launch.enter_context(turn_to_launch(app, plan))
                refuse_over_limits(app, folder, plan)
            create = partial(
                _create,
                app,
                folder,
                provider,
                before=before,
                host_keys=host_keys,
                runs=runs,
                setup=setup,
                launch=launch,
                boot_timeout_s=(boot_timeout_s or BOOT_TIMEOUT_S) if wait else None,
                for_run=for_run,
            )
            claim = nullcontext() if for_run or not plan.end else folder.claim_machines("up")
            with claim:
                try:
                    made = create(plan)
                except TermsRefused as error:
                    plan = provider.plan(spec, before)
                    app.output.say(f"{error} The next image is taken: {plan.image}, {plan.image_why}.")
                    made = create(plan)
        except BaseException as error:
            if fresh:
                _forget_if_empty(app, folder, provider)
            if isinstance(error, KeyboardInterrupt):
                with suppress(InventoryError):
                    left = _inventory(folder)
                    if left is not None and (note := unprepared_note(folder, left.machines)):
                        app.output.say(note)
            raise
    seconds = round(passed_s() - began, 3)
    inventory, done, trouble = made
    ends = _ends(app, folder, provider, inventory, ask_machines=wait)
    result = UpResult(
        cluster=inventory.cluster,
        provider=inventory.provider,
        region=inventory.region,
        machines=tuple(machine.public() for machine in inventory.machines),
        hourly_usd=inventory.hourly_usd,
        ends=ends or None,
        setup=tuple(done) if setup.steps else None,
        seconds=seconds,
    )
    if trouble:
        raise Failed(trouble) if for_run else Attention(trouble, result=result)
    app.output.say(f"{up_plan.what_changed(plan, before, inventory)} ({seconds:.1f} s)")
    if provider.billed and before is None and not for_run:
        app.output.say("another computer can use it, too: `gpuctl key export`, or there `gpuctl adopt`")
    if note := unprepared_note(folder, inventory.machines):
        app.output.say(note)
    if spec.notify:
        if wait:
            watch_machines(app, folder, inventory, spec.notify)
        send_from_here(app, spec.notify, command_succeeded("up", folder.name, [up_plan.up_line(inventory)]))
    return result


def _ends(
    app: App, folder: ClusterFolder, provider: Provider, inventory: Inventory, *, ask_machines: bool
) -> tuple[EndGuard, ...] | None:
    """Return the mechanisms that end the machines, and warn if no mechanism ends their bill. `None`: not known.

    `ask_machines`: also connect to machines that end after a time without use, and name them to each other.
    """
    try:
        ends = ends_of(folder, provider, inventory.machines)
        if ask_machines:
            ends = idle_state(folder, provider.name, inventory.machines, ends)[1] or ()
    except ProvisionError as error:
        app.output.say(f"note: the end of the machines' time could not be looked at: {error}")
        return None
    rented = bool(inventory.machines) and provider.name in RENTED
    if rented and (text := warning(folder, ends, inventory.hourly_usd)):
        app.output.say(f"warning: {text}", "bold")
    for guard in ends:
        unknown = guard.armed is None and guard.ends_bill and not is_relied_on(guard)
        on_machines = guard.guard == IDLE or not guard.ends_bill
        if unknown or (guard.armed is False and on_machines) or (guard.guard == IDLE and guard.problem):
            app.output.say(f"note: {guard.guard}: {guard.problem}")
    return ends


def plan(app: App, spec: Spec, *, boot_timeout_s: float | None = None) -> tuple[Plan, Setup, str]:
    """Return the plan of `up`, the setup of the machines, and why the account was not asked (empty: it was)."""
    spec = resolve_shape(spec)
    folder = folder_to_plan(app, app.store.cluster(spec.cluster), spec)
    provider, spec, defaults = _provider(app, folder, replace(spec, cluster=folder.name), boot_timeout_s)
    current, unasked = _inventory(folder), ""
    try:
        planned = provider.plan(spec, current)
    except (BadCredentials, Unclear) as error:  # the account can't be asked: plan for an empty one
        unknown_profile = isinstance(error, UnknownProfile)
        if not isinstance(provider, OutliningProvider) or current is not None or unknown_profile:
            raise
        planned, unasked = provider.outline(spec), str(error)
    limits = refuse_over_limits(app, folder, planned) if not unasked else unchecked_limits(app, planned)
    planned = replace(planned, notes=(*planned.notes, *defaults, *limits))
    return planned, _setup_of(app, folder, planned), unasked


def _provider(
    app: App, folder: ClusterFolder, spec: Spec, boot_timeout_s: float | None
) -> tuple[Provider, Spec, tuple[str, ...]]:
    """Return the spec's provider, the spec to pass to it, and notes on defaults of the user's configuration in it."""
    provider = load(choose_provider(folder, spec), folder)
    if boot_timeout_s is not None and not provider.billed:
        raise InvalidInput(
            f"{provider.name} has no --boot-timeout: its machines are up already. Leave that out, or name "
            "another provider."
        )
    # Terms are accepted by the same typed yes as the price, where somebody is there to type it.
    spec = replace(spec, ask_terms=app.output.asks)
    return provider, *with_defaults(app, spec, folder, provider)


def _setup_of(app: App, folder: ClusterFolder, plan: Plan) -> Setup:
    """Return the setup for the machines of a plan. Raises BadFabfile."""
    requested = plan.spec.setup
    steps = setup_steps(folder) if requested is None else requested
    return plan_setup(app, folder, steps, [machine.name for machine in plan.create], plan.keep)


def _ending(provider: Provider, plan: Plan) -> list[Machine]:
    """Return the machines that a smaller count ends, by the provider's list: other computers make machines, too."""
    count = len(plan.keep) + len(plan.create)
    return [m for m in provider.find() if m.id in plan.end and m.rank >= count] if plan.end else []


def _refuse_to_end(
    app: App,
    folder: ClusterFolder,
    before: Inventory | None,
    ending: Sequence[Machine],
    runs: "ClusterRuns",
    *,
    for_run: bool,
) -> None:
    """Raise Usage if a run is active, or may be, on a machine that is about to end."""
    if for_run and ending:
        runs.refuse_if_active(app.store.runs(folder.name))
    elif ending:
        # Runs on machines of a lost inventory are not known.
        known = before.machines if before is not None else ()
        refuse_to_end_busy(app.store, folder, known, ending, runs.unfinished, app.output.say)


def _ask(app: App, plan: Plan, setup: Setup, ending: Sequence[Machine]) -> Plan:
    """Ask for a yes to the price and to the end of machines, which also accepts the terms of the machines' image.

    Returns the plan as accepted. Raises AddressUnknown if the addresses with access to SSH are not known.
    """
    if plan.ssh_unknown:
        raise AddressUnknown(plan.ssh_unknown)
    if not plan.changes or plan.free or app.options.yes:
        for note in up_plan.standing_notes(plan):
            app.output.say(f"note: {note}")
    else:
        app.output.table(up_plan.drawn(plan, setup), aside=True)
    if plan.requests:
        app.output.detail(up_plan.requests_text(plan))
    if (
        ((plan.changes and not plan.free) or ending)
        and not app.output.confirm(up_plan.question(plan, {m.id: m.name for m in ending}), paid=True)
    ):  # fmt: skip
        raise Declined(f"Cancelled: nothing was {'changed' if ending else 'created'}.")
    return replace(plan, spec=replace(plan.spec, accept_terms=True)) if plan.terms is not None else plan


def _inventory(folder: ClusterFolder) -> Inventory | None:
    return folder.load() if folder.exists() else None


def _forget_if_empty(app: App, folder: ClusterFolder, provider: Provider) -> None:
    """Remove the remains of a first `up` that failed, unless machines exist."""
    if folder.exists():
        return
    begun = folder.journal.path.exists()
    # Of machines that are somebody's nothing is made.
    say = app.output.detail if provider.name == "hosts" else app.output.say
    if begun:
        say("removing what was begun …")
        try:
            if machines := provider.find():
                say(
                    f"{plural(len(machines), 'machine')} are there: `gpuctl up` goes on, `gpuctl down` removes them"
                )
            left = bool(machines or provider.destroy(app.output.say))
        except ProvisionError as error:
            left = True
            app.output.error(f"{error} `gpuctl down --cluster {folder.name}` looks again.")
        if left:
            return  # the folder is needed to remove it
    folder.remove()
    if begun:
        say("nothing of it is left")


def _create(
    app: App,
    folder: ClusterFolder,
    provider: Provider,
    plan: Plan,
    *,
    before: Inventory | None,
    host_keys: HostKeys,
    runs: "ClusterRuns",
    setup: Setup,
    launch: ExitStack,
    boot_timeout_s: float | None,
    for_run: bool,
) -> tuple[Inventory, list[SetUp], str]:
    """Make the machines of the plan, reach them, and run their setup.

    `boot_timeout_s` is `None` if the command does not wait for them. Returns the cluster, the results of the setup,
    and the problem with machines that can't be used yet (empty: all can). `for_run`: as of `up`. `launch`: is left
    once the machines are made.
    """
    made = make(app, folder, provider, plan, before=before, host_keys=host_keys, setup=setup, for_run=for_run)
    inventory = made.inventory
    launch.close()
    warn_over_limits(app, folder, plan)
    if provider.ends_machines:
        folder.journal.append(SETTLED, ended=len(plan.end))
    if boot_timeout_s is None or not inventory.machines:
        if plan.create and plan.driver is not None and plan.driver.source == "install":
            app.output.say(
                "note: the GPUs' driver is not installed yet; `gpuctl up` without --no-wait does that."
            )
        if setup.machines:
            app.output.say("note: the setup has not run yet; `gpuctl up` without --no-wait runs it.")
        return keep(app, folder, before, inventory, runs, ended=provider.ends_machines), [], ""
    created = [machine.name for machine in plan.create]
    known = {machine.id for machine in (before.machines if before else ())}
    elsewhere = [m for m in inventory.machines if m.name not in created and m.id not in known]
    if elsewhere and isinstance(provider, AdoptingProvider):
        for outcome in log_in(folder, provider, elsewhere):
            if outcome.value:
                app.output.say(outcome.value)
    boot = Boot(
        timeout_s=boot_timeout_s,
        console=provider.console,
        hourly_usd=plan.hourly_usd,
        made=never_ready(folder, made.machines, created=created),
        end_timer=f"{EXPIRE_UNIT}.timer" if any(end.guard == POWER_OFF for end in plan.ends) else None,
    )
    try:
        reached = reach(
            app,
            folder,
            inventory.machines,
            boot=boot if provider.billed else None,
            driver=plan.driver or NO_DRIVER,
        )
        inventory = replace(inventory, machines=reached.machines)
        record_end_timers(folder, inventory.machines, reached.end_timers)
    except BaseException:
        if before is not None and not made.ours:
            pin_host_keys(folder, before.machines)
        raise
    saved = keep(app, folder, before, inventory, runs, ended=provider.ends_machines)
    done, wrong, hints = _set_up(app, folder, saved, reached, setup, billed=provider.billed)
    return saved, done, "\n".join(wrong if for_run else (*wrong, *hints))


def _set_up(
    app: App, folder: ClusterFolder, inventory: Inventory, reached: Reached, setup: Setup, *, billed: bool
) -> tuple[list[SetUp], list[str], list[str]]:
    """Run the setup on machines that lack it, and record which machines are ready.

    Returns the results, the problems of the other machines, and the hints for the user.
    """
    usable = [machine for machine in inventory.machines if machine.name not in reached.problems]
    done = set_up(app, folder, usable, setup)
    failed = [result for result in done if result.status != "done"]
    names = {result.node for result in failed}
    folder.journal.append(READY, machines=[machine.id for machine in usable if machine.name not in names])
    wrong = [gpu_problems(inventory, reached)] if reached.problems else []
    hints = [gpu_hint(inventory, reached, billed=billed)] if reached.problems else []
    if failed:
        wrong += [result.description() for result in failed]
        hints += [setup_hint(inventory, failed, billed=billed)]
    return done, wrong, hints
