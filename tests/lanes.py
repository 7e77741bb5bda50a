"""The lanes of the tests.

    python tests/lanes.py fast                the fast tests, and one real end-to-end test per subject
    python tests/lanes.py deep --minutes 25   a part of all others: the subjects of the newest commits come first
    python tests/lanes.py all                 all tests, for hours

The fast lane fails above its budget of CPU time, so that it stays fast. The budget is scaled to this machine's speed;
waiting is free.
"""

import argparse
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parent
WORKERS = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
"""Half of what tests do is waiting. A file's tests stay together, and long files begin in their order."""

FAST_CPU_S = 1080.0
"""The fast lane's budget: 9 minutes of two cores, on a machine where `piece_s` is PIECE_S while tests run."""
PIECE_S = 0.17
PIECES_APART_S = 10.0
NEWEST_S = 6 * 3600
"""A commit within this time of the newest commit counts as recent work."""
ORPHANS_S = 15.0
"""Grace period for processes that outlive the tests."""

KUBE_SERVER = "integration/test_kube_server.py"
"""Needs an API server, which is built where these tests are due."""
KUBERNETES_BUILD_S = 1200.0

_CLOUD = (
    "provision/",
    "gpuctl/workflow/clusters/up.py",
    "gpuctl/workflow/clusters/down.py",
    "tests/fakes/aws_proxy",
    "tests/fakes/oci",
)
_RUN = ("gpuctl/workflow/", "remote/", "inventories/runs/run.py", "inventories/runs/result.py")
_HOSTS = ("remote/", "gpuctl/workflow/", "tests/fakes/vms")
_EKS = ("provision/eks/", "provision/rented/managed_kubernetes/", "provision/aws/", "tests/fakes/aws_proxy")
_OKE = ("provision/oke/", "provision/rented/managed_kubernetes/", "provision/oci/", "tests/fakes/oci")
ABOUT: Mapping[str, tuple[str, ...]] = {
    "fakes/test_aws_proxy_hosts.py": ("tests/fakes/",),
    "fakes/test_vms.py": ("tests/fakes/vms",),
    "gpuctl/run_report/test_page.py": ("gpuctl/run_report/",),
    "gpuctl/workflow/jobs/test_advice.py": (
        "gpuctl/workflow/jobs/adv",
        "gpuctl/tables/advise.py",
        "train/advice/",
    ),
    "gpuctl/workflow/runs/strategy/test_division.py": (
        "gpuctl/workflow/runs/strategy/",
        "train/advice/",
        "train/strategies/",
    ),
    "gpuctl/workflow/machines/test_replaced_pods.py": (
        "gpuctl/workflow/machines/replaced_pods",
        "provision/kubernetes/pods",
    ),
    "gpuctl/workflow/clusters/test_up_terms.py": ("gpuctl/workflow/clusters/up", "provision/oci/"),
    "integration/test_adopt_after_down.py": (*_CLOUD, "gpuctl/workflow/clusters/adopt.py"),
    "integration/test_adopt_after_train.py": (
        "gpuctl/workflow/clusters/adopt.py",
        "gpuctl/workflow/jobs/train.py",
        "gpuctl/workflow/runs/found_runs.py",
        "remote/node/runs/supervisor.py",
        "remote/node/storage/",
    ),
    "integration/test_bad_input.py": ("gpuctl/commands/", "gpuctl/command_line/cli.py", "inventories/"),
    "integration/test_bench.py": (
        "gpuctl/tables/bench.py",
        "gpuctl/scaling/forecast.py",
        "gpuctl/workflow/jobs/bench",
        "train/",
    ),
    "integration/test_boot.py": (
        "remote/sessions/wait_for_boot.py",
        "remote/checks/readiness.py",
        "remote/node/checks/ready.py",
        "gpuctl/workflow/machines/reach.py",
    ),
    "integration/test_clean.py": (
        "gpuctl/workflow/clusters/clean/",
        "remote/files/leftovers.py",
        "remote/node/",
        "remote/shared/",
    ),
    "integration/test_cloud_properties.py": _CLOUD,
    "integration/test_clouds.py": (*_CLOUD, "gpuctl/commands/"),
    "integration/test_clusters.py": (
        "gpuctl/workflow/clusters/clusters.py",
        "gpuctl/workflow/clusters/status.py",
    ),
    "integration/test_spending.py": (
        "gpuctl/workflow/clusters/accounts.py",
        "gpuctl/workflow/clusters/cost.py",
        "gpuctl/workflow/clusters/defaults.py",
        "gpuctl/workflow/clusters/spending_limits.py",
        "provision/pricing/ledger.py",
        "provision/rented/scan.py",
    ),
    "integration/test_crash_sweep.py": _CLOUD,
    "integration/test_managed_kubernetes.py": (*_CLOUD, "tests/fakes/kube"),
    "integration/test_doctor_cluster.py": (
        "gpuctl/workflow/clusters/doctor",
        "remote/checks/probe",
        "remote/node/",
    ),
    "integration/test_docs_pages.py": ("docs/", "gpuctl/commands/", "gpuctl/command_line/root_help.py"),
    "integration/test_driver.py": (
        "remote/gpu_driver/",
        "remote/node/gpu/driver",
        "remote/checks/readiness.py",
        "gpuctl/workflow/machines/reach.py",
    ),
    "integration/test_elastic.py": ("gpuctl/workflow/", "remote/launchers/ray", "train/"),
    "integration/test_end_timers.py": (
        "gpuctl/workflow/clusters/ends.py",
        "gpuctl/workflow/machines/reach.py",
        "remote/checks/",
        "remote/node/checks/facts.py",
    ),
    "integration/test_environment.py": ("remote/python_env/", "remote/node/environments/"),
    "integration/test_idle.py": (
        "gpuctl/workflow/clusters/unused.py",
        "provision/rented/launch/idle_watch.py",
        "gpuctl/workflow/machines/idle.py",
        "remote/checks/idle.py",
        "remote/node/checks/idle.py",
    ),
    "provision/rented/test_idle_watch.py": ("provision/rented/launch/idle_watch.py",),
    "integration/test_fab.py": ("gpuctl/workflow/machines/fab", "remote/fabfile.py", "remote/transport/"),
    "integration/test_faults.py": _RUN,
    "integration/test_firewall.py": ("remote/firewall/", "remote/node/firewall.py"),
    "integration/test_gpu_machines.py": (
        "provision/rented/planning/drivers.py",
        "provision/oci/images/choice.py",
        "provision/aws/images/choice.py",
        "remote/gpu_driver/",
        "tests/fakes/",
    ),
    "integration/test_bastion.py": (
        "remote/transport/tunnel.py",
        "remote/sessions/connect.py",
        "remote/transport/login.py",
        "inventories/address.py",
    ),
    "integration/test_first_lines.py": (
        "gpuctl/run_results/",
        "remote/node/runs/end_facts.py",
        "remote/end_sentences.py",
        "remote/node/hangs/rank_hook/",
    ),
    "integration/test_gpu_end.py": ("remote/node/runs/gpu_watch.py", "remote/node/runs/usage.py"),
    "integration/test_hangs.py": (
        "gpuctl/run_results/hangs/",
        "gpuctl/workflow/runs/on_hang.py",
        "remote/node/hangs/",
        "remote/runs/rank_activity.py",
    ),
    "integration/test_job_file.py": (
        "gpuctl/command_line/job_file/",
        "inventories/specs/job_file.py",
        "gpuctl/command_line/options.py",
    ),
    "integration/test_notify_vms.py": (
        "gpuctl/workflow/machines/notify.py",
        "remote/node/notify/",
    ),
    "integration/test_notify.py": (
        "gpuctl/workflow/machines/notify.py",
        "remote/checks/notices.py",
        "remote/node/notify/",
        "remote/shared/notify/",
    ),
    "integration/test_hangs_vms.py": (
        "gpuctl/run_results/hangs/",
        "gpuctl/workflow/runs/on_hang.py",
        "remote/node/hangs/",
        "remote/runs/rank_activity.py",
    ),
    "integration/test_kubernetes.py": ("provision/kubernetes/", "remote/transport/pods/", "tests/fakes/kube"),
    "provision/aws/infrastructure/test_private.py": ("provision/aws/", "tests/fakes/aws_proxy"),
    "provision/kubernetes/test_provider.py": ("provision/kubernetes/", "tests/fakes/kube"),
    "provision/eks/test_ends.py": _EKS,
    "provision/eks/test_provider.py": _EKS,
    "provision/eks/test_refusals.py": _EKS,
    "provision/eks/test_scaling.py": _EKS,
    "provision/eks/test_zones.py": _EKS,
    "provision/oci/test_scheduled_end.py": ("provision/oci/", "provision/rented/", "tests/fakes/oci"),
    "provision/oke/test_provider.py": _OKE,
    "integration/test_kube_server.py": (
        "provision/kubernetes/",
        "remote/transport/pods/",
        "tests/kube/",
        "tests/fakes/kube/",
    ),
    "integration/test_launchers.py": ("remote/launchers/__init__.py", "gpuctl/workflow/jobs/train.py"),
    "integration/test_leaving_hosts.py": ("gpuctl/workflow/", "remote/firewall/"),
    "integration/test_library.py": ("gpuctl/library/", "gpuctl/__init__.py", "docs/python-api.md"),
    "integration/test_login_shells.py": (
        "remote/sessions/login_shell.py",
        "remote/sessions/node_payload.py",
        "remote/shared/greeting.py",
    ),
    "integration/test_live_progress.py": (
        "gpuctl/run_results/progress.py",
        "gpuctl/run_results/script_progress.py",
        "remote/node/runs/script_files.py",
    ),
    "integration/test_machines.py": (
        "gpuctl/workflow/machines/access.py",
        "remote/files/pull.py",
        "remote/files/sync.py",
    ),
    "integration/test_mirror.py": (
        "remote/runs/mirror.py",
        "gpuctl/workflow/runs/outputs/checkpoints.py",
        "remote/files/checkpoints.py",
    ),
    "integration/test_named_runs.py": (
        "gpuctl/run_report/",
        "gpuctl/run_results/best.py",
        "gpuctl/run_results/repeats.py",
        "gpuctl/tables/comparison.py",
        "gpuctl/workflow/runs/results.py",
        "inventories/runs/labels.py",
    ),
    "integration/test_new_cloud.py": (
        "provision/rented/",
        "provision/clouds.py",
        "tests/fakes/toy_cloud",
    ),
    "integration/test_open_runs.py": (*_RUN, "gpuctl/commands/down.py"),
    "integration/test_ssh_logins.py": (
        "remote/transport/keys.py",
        "remote/transport/proxy_command.py",
        "inventories/user_ssh.py",
        "inventories/ansible/ssh_args.py",
    ),
    "integration/test_openssh.py": (
        "remote/sessions/connect.py",
        "remote/transport/login.py",
        "remote/transport/host_keys.py",
        "remote/sessions/session.py",
    ),
    "integration/test_other_scripts.py": ("docs/examples/others/", "gpuctl/run_results/written_losses.py"),
    "integration/test_outputs.py": (
        "remote/node/storage/outputs.py",
        "remote/runs/outputs.py",
        "remote/runs/run_files.py",
        "gpuctl/run_results/outputs.py",
        "gpuctl/workflow/runs/",
    ),
    "integration/test_package.py": ("train/__init__.py", "inventories/__init__.py", "gpuctl/__main__.py"),
    "integration/test_parts.py": (
        "gpuctl/workflow/runs/idle_nodes.py",
        "gpuctl/workflow/runs/gpus.py",
        "remote/node/run_state.py",
        "remote/node/checks/occupancy.py",
    ),
    "integration/test_plans.py": ("gpuctl/workflow/clusters/up_plan.py", "provision/", "docs/plans"),
    "integration/test_probe.py": (
        "remote/checks/probe",
        "remote/checks/preflight.py",
        "remote/node/checks/probe.py",
    ),
    "integration/test_project.py": (
        "remote/python_env/project.py",
        "remote/node/environments/",
        "gpuctl/workflow/runs/request/",
    ),
    "integration/test_python_env.py": (
        "remote/python_env/",
        "remote/node/environments/",
        "remote/node/environments/build.py",
    ),
    "integration/test_ray.py": (
        "remote/launchers/ray",
        "remote/node/ray/",
        "train/on_ray/",
        "gpuctl/workflow/clusters/ray.py",
    ),
    "integration/test_ray_data.py": ("train/batches/ray_data.py", "train/on_ray/"),
    "integration/test_ray_vms.py": ("remote/launchers/ray", "remote/node/ray/"),
    "integration/test_reap.py": (*_CLOUD, "gpuctl/workflow/clusters/reap.py"),
    "integration/test_resume.py": (
        "gpuctl/workflow/runs/resume.py",
        "gpuctl/workflow/jobs/job.py",
        "gpuctl/workflow/jobs/train.py",
        "remote/files/checkpoints.py",
        "train/checkpoints/",
    ),
    "integration/test_second_computer.py": (
        *_CLOUD,
        "gpuctl/workflow/clusters/adopt.py",
        "gpuctl/workflow/clusters/key.py",
    ),
    "integration/test_second_run.py": (
        "gpuctl/workflow/runs/outputs/earlier.py",
        "remote/files/earlier.py",
        "remote/node/storage/earlier.py",
        "remote/node/storage/sync.py",
    ),
    "integration/test_session.py": ("gpuctl/workflow/", "provision/local"),
    "integration/test_setup.py": (
        "gpuctl/workflow/machines/setup.py",
        "gpuctl/workflow/clusters/up.py",
        "inventories/specs/setup_steps.py",
    ),
    "integration/test_slow_link.py": ("train/strategies/", "gpuctl/scaling/forecast.py"),
    "integration/test_strategies.py": (
        "train/strategies/",
        "train/checkpoints/",
        "train/on_ray/",
        "gpuctl/workflow/runs/on_hang.py",
        "gpuctl/run_results/",
    ),
    "integration/test_strategy_chains.py": (
        "train/strategies/",
        "train/checkpoints/",
        "train/on_ray/",
        "gpuctl/workflow/runs/resume.py",
    ),
    "integration/test_sync_scale.py": (
        "remote/files/sync.py",
        "remote/files/rsync.py",
        "remote/node/storage/sync.py",
    ),
    "integration/test_top.py": (
        "remote/runs/usage.py",
        "remote/node/runs/usage",
        "remote/node/gpu/",
        "gpuctl/workflow/machines/top.py",
    ),
    "integration/test_traps.py": _HOSTS,
    "integration/test_transport.py": (
        "remote/transport/",
        "remote/sessions/session.py",
        "remote/sessions/connect.py",
    ),
    "integration/test_unused_gpus.py": ("remote/checks/gpu_use.py", "train/distributed/"),
    "integration/test_user_scripts.py": (
        *_RUN,
        "remote/launchers/torchrun.py",
        "remote/launchers/rank_command.py",
    ),
    "integration/test_vm_hosts.py": _HOSTS,
    "provision/local/test_provider.py": ("provision/local",),
    "provision/local/test_ssh.py": ("provision/local", "remote/transport/login.py"),
    "remote/node/test_forked_ranks.py": (
        "remote/node/runs/",
        "remote/launchers/torchrun.py",
        "train/__main__.py",
    ),
    "remote/node/test_rank_hook.py": ("remote/node/hangs/rank_hook/",),
    "remote/transport/test_agent.py": ("remote/transport/login.py", "remote/sessions/connect.py"),
    "remote/sessions/test_boot.py": ("remote/sessions/wait_for_boot.py",),
    "remote/sessions/test_bounds.py": ("remote/sessions/limits.py", "remote/sessions/session.py"),
    "remote/sessions/test_session.py": ("remote/sessions/session.py",),
    "remote/files/test_pull.py": ("remote/files/pull.py",),
    "train/advice/test_large_networks.py": ("train/advice/", "train/strategies/plan.py"),
    "train/advice/test_planted.py": ("train/advice/", "train/strategies/", "bench/advise.py"),
    "train/advice/test_tracker.py": ("train/advice/", "train/strategies/"),
    "train/data/test_download.py": ("train/data/",),
    "train/reporting/test_metrics.py": ("train/reporting/metric",),
    "train/strategies/test_chains.py": ("train/strategies/", "train/checkpoints/", "train/trainer.py"),
    "train/strategies/test_deepspeed.py": ("train/strategies/", "train/checkpoints/", "train/train_step.py"),
    "train/strategies/test_memory_savers.py": ("train/strategies/", "train/trainer.py"),
    "train/strategies/test_strategies.py": ("train/strategies/", "train/checkpoints/", "train/trainer.py"),
    "train/test_allreduce.py": ("train/allreduce.py",),
    "train/test_equal_math.py": ("train/",),
    "train/test_gpu_bench.py": ("bench/", "train/"),
    "train/test_job.py": ("train/",),
    "train/test_recipes.py": ("train/",),
    "train/test_step_graph.py": (
        "train/step_graph.py",
        "train/train_step.py",
        "train/strategies/ddp.py",
        "train/reporting/timing.py",
    ),
    "train/test_text_job.py": ("train/", "docs/strategies.md"),
    "train/test_torchvision_import.py": ("train/torchvision_import.py",),
    "integration/test_queue.py": ("remote/node/queue/", "remote/runs/queue.py", "gpuctl/workflow/jobs/queue"),
    "remote/node/test_queue.py": ("remote/node/queue/", "remote/node/runs/supervisor.py"),
}
"""File with deep tests → beginnings of the paths that it is about."""


def about(touched: Iterable[str]) -> set[str]:
    """Return the files with deep tests whose subject was touched."""
    changed = tuple(touched)
    return {
        file
        for file in ABOUT
        if any(path.startswith(ABOUT[file]) or path == f"tests/{file}" for path in changed)
    }


def deep_order(touched: Iterable[str], commits: int) -> list[str]:
    """Return the files with deep tests: the files whose subject was touched, then all others.

    Both parts start at another file for each number of commits: a file that the time limit cuts off runs a few
    landings later.
    """
    files = sorted(ABOUT)
    start = commits * 997 % len(files)  # a prime above their number: each comes first in its turn
    turned = [*files[start:], *files[:start]]
    due = about(touched)
    return [file for file in turned if file in due] + [file for file in turned if file not in due]


def commits_so_far() -> int:
    """Return the number of commits; 0 outside a git repository."""
    return int(_git("rev-list", "--count", "HEAD") or 0)


def newest_paths() -> list[str]:
    """Return the paths that the newest commits touched; empty outside a git repository."""
    newest = _git("log", "-1", "--format=%ct")
    if not newest:
        return []
    return sorted(
        set(_git("log", f"--since={int(newest) - NEWEST_S}", "--name-only", "--format=").split("\n")) - {""}
    )


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=TESTS, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def piece_s() -> float:
    """CPU seconds that this machine takes now for a fixed piece of Python's work."""
    began = time.thread_time()
    words = [f"{number * 7919 % 10007:05d}" for number in range(150_000)]
    counts: dict[str, int] = {}
    for word in sorted(words):
        counts[word[:3]] = counts.get(word[:3], 0) + len(word.split("1"))
    return time.thread_time() - began


@contextmanager
def pieces() -> Iterator[list[float]]:
    """Yield the seconds of `piece_s`, measured repeatedly while the body runs."""
    pieces_s, over = [piece_s()], threading.Event()

    def measure() -> None:
        while not over.wait(PIECES_APART_S):
            pieces_s.append(piece_s())

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield pieces_s
    finally:
        over.set()
        thread.join()


def run(words: Sequence[str], env: Mapping[str, str]) -> tuple[int, float]:
    """Run pytest, and return its exit status and the CPU seconds of all its processes, including daemons."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)
    pytest = subprocess.Popen([sys.executable, "-m", "pytest", *words], cwd=TESTS.parent, env=dict(env))
    status: int | None = None
    limit = float("inf")
    while time.monotonic() < limit:
        try:
            pid, raw = os.waitpid(-1, 0 if status is None else os.WNOHANG)
        except ChildProcessError:
            break
        if pid == pytest.pid:
            status = pytest.returncode = os.waitstatus_to_exitcode(raw)
            limit = time.monotonic() + ORPHANS_S
        elif pid == 0:
            time.sleep(0.1)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert status is not None
    return status, used.ru_utime + used.ru_stime


def fast(options: Sequence[str]) -> int:
    """Run the fast lane; fails above its budget."""
    with pieces() as pieces_s:
        status, cpu_s = run([*WORKERS, "-m", "not slow or whole", *options], os.environ)
    piece = statistics.mean(pieces_s)
    budget_s = FAST_CPU_S * piece / PIECE_S
    print(
        f"the fast lane took {cpu_s:.0f} s of CPU time, of {budget_s:.0f} s that it may take on a machine as fast "
        f"as this one was (a piece of work took {piece:.3f} s)"
    )
    if status == 0 and not options and cpu_s > budget_s:
        print("above its budget: `--durations=20` tells what costs most; mark it slow, or make it cheaper")
        return 1
    return status


def deep(minutes: float, options: Sequence[str]) -> int:
    """Run deep tests for that number of minutes, in the order of `deep_order`; pytest lists the skipped tests."""
    touched = newest_paths()
    if KUBE_SERVER in about(touched):
        minutes -= build_kubernetes() / 60
    order = deep_order(touched, commits_so_far())
    files = [str(TESTS / file) for file in order]
    env = {**os.environ, "GPUCTL_TEST_MINUTES": str(minutes)}
    return run([*WORKERS, "-m", "slow and not whole", *files, *options], env)[0]


def build_kubernetes() -> float:
    """Build the API server unless it exists, which takes minutes, and return the seconds that it took.

    If the build fails, the tests that need the server are skipped, and name the reason.
    """
    began = time.monotonic()
    if os.geteuid() == 0:
        command = ["bash", str(TESTS / "kube" / "build.sh")]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=KUBERNETES_BUILD_S, check=False
            )
            output = "" if done.returncode == 0 else f"{done.stdout}{done.stderr}"[-2000:]
        except (OSError, subprocess.TimeoutExpired) as error:
            output = str(error)
        if output:
            print(f"Kubernetes' API server could not be built:\n{output}", flush=True)
    return time.monotonic() - began


def everything(options: Sequence[str]) -> int:
    """Run all tests, with every point of the sweeps and many histories of the clouds."""
    build_kubernetes()
    env = {**os.environ, "GPUCTL_TEST_SWEEPS": "all", "GPUCTL_TEST_SEQUENCES": "100"}
    return run([*WORKERS, *options], env)[0]


def main() -> int:
    """Run the named lane; further arguments are pytest's."""
    parser = argparse.ArgumentParser(
        description="Run a lane of the tests; options that are not known are pytest's."
    )
    parser.add_argument("lane", choices=("fast", "deep", "all"))
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="for how long deep tests are begun"
    )
    inputs, options = parser.parse_known_args()
    if inputs.lane == "fast":
        return fast(options)
    return deep(inputs.minutes, options) if inputs.lane == "deep" else everything(options)


if __name__ == "__main__":
    sys.exit(main())
