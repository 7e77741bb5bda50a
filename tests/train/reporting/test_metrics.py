"""The managers of one rank and of several, against torchmetrics' functions on all samples at once."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from train.errors import BadOptions
from train.reporting import metric_factory
from train.reporting.metrics import BUFFERED_NUMBERS, MetricsManager
from train.torchvision_import import import_torchvision

import_torchvision()  # torchmetrics imports it
from torchmetrics.functional import classification as functions  # noqa: E402

CLASSES = 7
CPU = torch.device("cpu")

COUNTS = {
    "accuracy": (functions.multiclass_accuracy, {"average": "micro"}),
    "top5": (functions.multiclass_accuracy, {"average": "micro", "top_k": 5}),
    "f1": (functions.multiclass_f1_score, {"average": "macro"}),
    "precision": (functions.multiclass_precision, {"average": "macro"}),
    "recall": (functions.multiclass_recall, {"average": "macro"}),
    "cohen_kappa": (functions.multiclass_cohen_kappa, {}),
    "exact_match": (functions.multiclass_exact_match, {}),
    "f1_score": (functions.multiclass_f1_score, {}),
    "hamming_distance": (functions.multiclass_hamming_distance, {}),
    "jaccard_index": (functions.multiclass_jaccard_index, {}),
    "matthews_corrcoef": (functions.multiclass_matthews_corrcoef, {}),
    "negative_predictive_value": (functions.multiclass_negative_predictive_value, {}),
    "specificity": (functions.multiclass_specificity, {}),
}
SCORES = {
    "auroc": (functions.multiclass_auroc, {}),
    "average_precision": (functions.multiclass_average_precision, {}),
    "calibration_error": (functions.multiclass_calibration_error, {}),
    "eer": (functions.multiclass_eer, {"average": "macro"}),
    "hinge_loss": (functions.multiclass_hinge_loss, {}),
    "logauc": (functions.multiclass_logauc, {"average": "macro"}),
}
NAMES = [*COUNTS, *SCORES]


def samples(count, seed=0, dtype=torch.float32):
    """Logits that are right more often than chance, and labels."""
    chance = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=chance)
    logits = torch.randn(count, CLASSES, generator=chance) + 1.5 * torch.eye(CLASSES)[labels]
    return logits.to(dtype), labels


def in_one_process(logits, labels):
    """Return torchmetrics' results for all samples."""
    numbers = {"loss": cross_entropy(logits.double(), labels).item()}
    for name, (function, settings) in COUNTS.items():
        numbers[name] = float(function(logits, labels, num_classes=CLASSES, **settings))
    for name, (function, settings) in SCORES.items():
        numbers[name] = float(function(logits.softmax(1), labels, num_classes=CLASSES, **settings))
    return numbers


def assert_same(numbers, expected):
    assert set(numbers) == set(expected)
    for name in COUNTS:
        assert numbers[name] == expected[name], name
    for name in ("loss", *SCORES):
        assert numbers[name] == pytest.approx(expected[name], rel=1e-5), name


def tell(manager, logits, labels, batch_size):
    for some, truth in zip(logits.split(batch_size), labels.split(batch_size), strict=True):
        manager.update(some, truth, cross_entropy(some, truth, reduction="sum"))


@pytest.mark.parametrize("batch_size", [1, 64, 1000])
def test_metrics_equal_torchmetrics_for_any_batch_size(batch_size):
    logits, labels = samples(301)
    manager = MetricsManager(NAMES, CLASSES, CPU)
    tell(manager, logits, labels, batch_size)
    assert_same(manager.compute(), in_one_process(logits, labels))


def test_metrics_start_at_0_in_each_epoch():
    manager = MetricsManager(NAMES, CLASSES, CPU)
    for epoch in range(3):
        logits, labels = samples(100 + epoch, seed=epoch)
        tell(manager, logits, labels, 40)
        assert_same(manager.compute(), in_one_process(logits, labels))


def test_metrics_over_the_buffer_limit_are_computed_in_between():
    classes = 4096
    manager = MetricsManager(["accuracy", "calibration_error"], classes, CPU)
    chance = torch.Generator().manual_seed(0)
    batch = 3 * BUFFERED_NUMBERS // 4 // classes
    logits, labels = torch.randn(batch, classes, generator=chance), torch.arange(batch) % classes
    logits[: batch // 2, :] += 8 * torch.eye(classes)[labels[: batch // 2]]
    buffered = []
    for some, truth in ((logits, labels), (logits[:1200], labels[:1200]), (logits[1200:], labels[1200:])):
        manager.update(some, truth, cross_entropy(some, truth, reduction="sum"))
        buffered.append(manager._buffered)
    assert buffered == [batch * classes, 0, (batch - 1200) * classes]
    numbers = manager.compute()
    assert numbers["loss"] == pytest.approx(cross_entropy(logits, labels).item())
    assert numbers["accuracy"] == float(
        functions.multiclass_accuracy(logits, labels, average="micro", num_classes=classes)
    )
    assert numbers["calibration_error"] == pytest.approx(
        float(functions.multiclass_calibration_error(logits.softmax(1), labels, num_classes=classes)),
        rel=1e-5,
    )


def test_metrics_copy_batches_that_are_overwritten_later():
    logits, labels = samples(120)
    manager = MetricsManager(["accuracy", "auroc"], CLASSES, CPU)
    static_logits, static_labels, loss_sum = torch.empty(40, CLASSES), labels[:40].clone(), torch.zeros(())
    for some, truth in zip(logits.split(40), labels.split(40), strict=True):
        static_logits.copy_(some)
        static_labels.copy_(truth)
        loss_sum.copy_(cross_entropy(some, truth, reduction="sum"))
        manager.update(static_logits, static_labels, loss_sum)
    expected = in_one_process(logits, labels)
    assert manager.compute() == pytest.approx(
        {name: expected[name] for name in ("loss", "accuracy", "auroc")}
    )


def test_metrics_do_not_take_logits_for_probabilities():
    logits, labels = samples(200)
    logits[:50] = logits[:50].sigmoid()
    manager = MetricsManager(NAMES, CLASSES, CPU)
    tell(manager, logits, labels, 50)
    assert_same(manager.compute(), in_one_process(logits, labels))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_metrics_support_other_precisions(dtype):
    logits, labels = samples(200, dtype=dtype)
    wide = logits if dtype == torch.float64 else logits.float()
    manager = MetricsManager(NAMES, CLASSES, CPU)
    manager.update(logits, labels, cross_entropy(wide, labels, reduction="sum"))
    assert_same(manager.compute(), in_one_process(wide, labels))


def test_metrics_work_in_training_and_inference_mode():
    logits, labels = samples(90)
    manager = MetricsManager(NAMES, CLASSES, CPU)
    for _ in range(2):
        tell(manager, logits[:40].clone().requires_grad_(), labels[:40], 40)
        with torch.inference_mode():
            tell(manager, logits[40:], labels[40:], 40)
        assert_same(manager.compute(), in_one_process(logits, labels))


def test_mean_loss_is_weighted_by_samples():
    manager = MetricsManager([], CLASSES, CPU)
    logits, labels = samples(4)
    manager.update(logits[:3], labels[:3], torch.tensor(3.0))
    manager.update(logits[3:], labels[3:], torch.tensor(9.0))
    assert manager.compute() == {"loss": 3.0}


def test_mean_loss_stays_exact_over_many_updates():
    manager = MetricsManager(["loss"], CLASSES, CPU)
    logits, labels = samples(1)
    manager.update(logits, labels, torch.tensor(2.0**24))
    for _ in range(15):
        manager.update(logits, labels, torch.tensor(1.0))
    assert manager.compute() == {"loss": (2**24 + 15) / 16}


def test_metrics_without_samples_are_nan():
    numbers = MetricsManager(NAMES, CLASSES, CPU).compute()
    assert set(numbers) == {"loss", *NAMES}
    assert all(math.isnan(number) for number in numbers.values())


ALL = (
    "Metrics that can be named: accuracy, auroc, average_precision, calibration_error, cohen_kappa, eer, "
    "exact_match, f1, f1_score, hamming_distance, hinge_loss, jaccard_index, logauc, matthews_corrcoef, "
    "negative_predictive_value, precision, recall, specificity, top5."
)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("acuracy", f"There is no metric acuracy. Did you mean accuracy? {ALL}"),
        ("AUROC-", f"There is no metric AUROC-. {ALL}"),
        ("matthews", f"There is no metric matthews. Did you mean matthews_corrcoef? {ALL}"),
        ("confusion_matrix", f"The metric confusion_matrix is more than one number. {ALL}"),
        ("roc", f"The metric roc is more than one number. {ALL}"),
        ("fbeta_score", f"The metric fbeta_score needs more than a name. {ALL}"),
    ],
)
def test_metrics_manager_refuses_unusable_names_in_one_sentence(name, sentence):
    with pytest.raises(BadOptions) as caught:
        MetricsManager(["accuracy", name], CLASSES, CPU)
    assert str(caught.value) == sentence


def test_metrics_tests_cover_every_offered_name():
    library = metric_factory._torchmetrics()
    assert set(metric_factory._choices(library)) == set(NAMES)


@pytest.mark.parametrize(("name", "classes"), [("top5", 4), ("accuracy", 1)])
def test_metrics_manager_refuses_a_metric_unfit_for_the_classes(name, classes):
    with pytest.raises(BadOptions, match=rf"^The metric {name} does not fit {classes} classes \(.+\)\.$"):
        MetricsManager([name], classes, CPU)


@pytest.mark.parametrize(("name", "classes"), metric_factory.CHECKED_FROM.items())
def test_metrics_known_to_fit_are_built_lazily(name, classes):
    logits, labels = torch.eye(classes), torch.arange(classes)
    manager = MetricsManager([name], classes, CPU)
    assert "_metrics" not in vars(manager), "nothing was built"
    tell(manager, logits, labels, 1)
    assert manager.compute()[name] == 1.0
    with pytest.raises(BadOptions, match=f"does not fit {classes - 1} classes"):
        MetricsManager([name], classes - 1, CPU)


@pytest.mark.parametrize(
    ("names", "samples"), [(["accuracy"], BUFFERED_NUMBERS // CLASSES + 1), (["accuracy", "auroc"], 1)]
)
def test_metrics_not_known_to_fit_are_built_at_once(names, samples):
    assert "_metrics" in vars(MetricsManager(names, CLASSES, CPU, samples=samples))


def in_a_process(program):
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_torchmetrics_is_only_imported_to_compute_a_metric():
    done = in_a_process(
        "import sys, torch\n"
        "from train.reporting.metrics import MetricsManager\n"
        "def told(*names):\n"
        "    manager = MetricsManager(names, 10, torch.device('cpu'), samples=2)\n"
        "    manager.update(torch.ones(2, 10), torch.zeros(2, dtype=torch.long), torch.tensor(4.0))\n"
        "    return manager\n"
        "accurate = told('accuracy', 'f1')\n"
        "print(told('loss').compute(), {'torchmetrics', 'torchvision'} & set(sys.modules))\n"
        "print(accurate.compute()['accuracy'], 'torchmetrics' in sys.modules)\n"
    )
    assert (done.stdout, done.stderr) == ("{'loss': 2.0} set()\n1.0 True\n", "")


@pytest.mark.slow
def test_metrics_manager_without_torchmetrics_names_the_package():
    done = in_a_process(
        "import sys, torch\n"
        "sys.modules['torchmetrics'] = None\n"
        "from train.errors import BadEnvironment\n"
        "from train.reporting.metrics import MetricsManager\n"
        "try: MetricsManager(['f1'], 10, torch.device('cpu'))\n"
        "except BadEnvironment as error: print(error)\n"
    )
    assert done.stdout == (
        f"{sys.executable} has no package torchmetrics, which metrics need. Install it: {sys.executable} -m pip "
        "install torchmetrics; or train with --metrics accuracy.\n"
    ), done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that one could wait for")
def test_metrics_update_does_not_synchronize_the_gpu():
    device = torch.device("cuda", 0)
    logits, labels = samples(301)
    on_device = (logits.to(device), labels.to(device), torch.ones((), device=device))
    manager = MetricsManager(NAMES, CLASSES, device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        manager.update(*on_device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = in_one_process(logits, labels)
    assert manager.compute()["accuracy"] == expected["accuracy"]


RANK = """
import json, os, sys
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from train.reporting.metrics import MetricsManager

folder, rank = os.environ["GPUCTL_RUN_DIR"], int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
given = torch.load(f"{folder}/given.pt")
manager = MetricsManager(given["names"], given["classes"], torch.device("cpu"))
told = []
for epoch in given["epochs"]:
    begin, end = epoch["bounds"][rank]
    logits, labels = epoch["logits"][begin:end], epoch["labels"][begin:end]
    for at in range(0, len(labels), 16):
        some, truth = logits[at : at + 16], labels[at : at + 16]
        manager.update(some, truth, cross_entropy(some, truth, reduction="sum"))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        numbers = manager.compute()
    collectives = [event.name for event in profiled.events() if event.name.startswith("gloo:")]
    told.append({"numbers": numbers, "collectives": collectives})
with open(f"{folder}/told-{rank}.json", "w") as file:
    json.dump(told, file)
dist.destroy_process_group()
"""

PARTS = [
    pytest.param([(0, 150), (150, 300)], id="alike"),
    pytest.param([(0, 3), (3, 301)], id="unlike"),
    pytest.param([(0, 0), (0, 150)], id="one rank without a sample"),
    pytest.param([(0, 0), (0, 0)], id="no samples"),
]


@pytest.fixture(scope="module")
def two_ranks(start, free_port, tmp_path_factory):
    """Return the results of each rank for each of the `PARTS`, an epoch each."""
    folder = tmp_path_factory.mktemp("ranks")
    epochs = []
    for number, parts in enumerate(PARTS):
        (bounds,) = parts.values
        logits, labels = samples(bounds[-1][1], seed=number)
        epochs.append({"bounds": bounds, "logits": logits, "labels": labels})
    torch.save({"names": NAMES, "classes": CLASSES, "epochs": epochs}, folder / "given.pt")
    script = folder / "rank.py"
    script.write_text(RANK)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    with start(*launcher, "--master-port", str(free_port()), str(script), run_dir=folder) as process:
        _, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    return [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("bounds", PARTS)
def test_metrics_of_two_ranks_equal_those_of_one_process(two_ranks, bounds):
    number = [parts.values[0] for parts in PARTS].index(bounds)
    first, second = (rank[number]["numbers"] for rank in two_ranks)
    assert json.dumps(first) == json.dumps(second), "to the last bit"
    count = bounds[-1][1]
    if count:
        assert_same(first, in_one_process(*samples(count, seed=number)))
    else:
        assert all(math.isnan(value) for value in first.values())


@pytest.mark.slow
def test_metrics_use_two_collectives_however_many_metrics(two_ranks):
    for rank in two_ranks:
        for epoch in rank:
            assert epoch["collectives"] == ["gloo:all_gather"] * 2, "how much there is, and what there is"


def test_sums_of_another_version_are_unknown():
    manager = MetricsManager(["accuracy"], 10, torch.device("cpu"))
    old = {"tp": torch.tensor(1), "fp": torch.tensor(0), "tn": torch.tensor(9), "fn": torch.tensor(0)}
    manager.load_state_dict([{"loss_sum": 2.0, "samples": 1, "states": {"accuracy": old}}])
    computed = manager.compute()
    assert computed["loss"] == 2.0
    assert math.isnan(computed["accuracy"])
