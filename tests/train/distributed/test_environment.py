import pytest
import torch

from train.distributed.devices import choose_device, cpu_threads
from train.distributed.environment import DistributedEnvironment, read_environment
from train.errors import BadEnvironment

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29400",
}


def test_rank_is_read_from_the_variables_of_torchrun():
    assert read_environment(TORCHRUN) == DistributedEnvironment(
        rank=3, world_size=4, local_rank=1, local_world_size=2
    )


def test_world_size_is_1_without_a_launcher():
    assert read_environment({"MASTER_ADDR": "10.0.0.1"}) == DistributedEnvironment(
        rank=0, world_size=1, local_rank=0, local_world_size=1
    )


@pytest.mark.parametrize("name", TORCHRUN)
def test_missing_torchrun_variable_is_named(name):
    incomplete = {key: value for key, value in TORCHRUN.items() if key != name}
    with pytest.raises(BadEnvironment, match=rf"but {name} not\. Start the job with torchrun"):
        read_environment(incomplete)


def test_rank_variable_that_is_no_number_is_named():
    with pytest.raises(BadEnvironment, match=r"'first'.*Start the job with torchrun"):
        read_environment(TORCHRUN | {"RANK": "first"})


@pytest.mark.parametrize(
    ("ranks_here", "environ", "threads"),
    [
        (1, {}, 16),
        (2, {}, 8),
        (3, {}, 5),
        (32, {}, 1),
        (2, {"OMP_NUM_THREADS": "4"}, 4),
        (2, {"OMP_NUM_THREADS": "1"}, 1),
        (2, {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}, 8),  # torchrun's, nobody's choice
        (1, {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}, 1),  # torchrun leaves one process alone
        (2, {"OMP_NUM_THREADS": "4,2"}, 8),
    ],
)
def test_cpu_threads_divides_cores_among_local_ranks(ranks_here, environ, threads):
    env = DistributedEnvironment(local_world_size=ranks_here)
    assert cpu_threads(env, cores=16, ranks=ranks_here, environ=environ) == threads


@pytest.fixture
def gpus(monkeypatch):
    def set_gpus(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return set_gpus


@pytest.mark.parametrize(
    ("count", "requested", "device"),
    [(0, "auto", "cpu"), (0, "cpu", "cpu"), (2, "auto", "cuda:1"), (2, "cuda", "cuda:1"), (2, "cpu", "cpu")],
)
def test_choose_device_gives_local_rank_n_gpu_n(gpus, count, requested, device):
    gpus(count)
    assert choose_device(
        requested, DistributedEnvironment(rank=5, world_size=8, local_rank=1, local_world_size=2)
    ) == torch.device(device)


@pytest.mark.parametrize(
    ("count", "requested", "sentence"),
    [
        (0, "cuda", "PyTorch sees no GPU on this host. Train with --device cpu"),
        (1, "auto", "no GPU for local rank 1: PyTorch sees 1 on this host. Start at most 1"),
    ],
)
def test_choose_device_refuses_too_few_gpus(gpus, count, requested, sentence):
    gpus(count)
    with pytest.raises(BadEnvironment, match=sentence):
        choose_device(
            requested, DistributedEnvironment(rank=1, world_size=2, local_rank=1, local_world_size=2)
        )
