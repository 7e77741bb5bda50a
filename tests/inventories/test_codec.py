import json
import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inventories import codec
from inventories.errors import CorruptFile, NewerFormat
from inventories.runs.result import FirstError, RankResult, Result, Seconds, Share, StepMs, TrainSummary
from inventories.runs.run import Run, RunNode

numbers = st.floats(allow_nan=False, allow_infinity=False)
known_or_not = st.none() | numbers
runs = st.builds(
    Run, nodes=st.lists(st.builds(RunNode, clock_offset_s=numbers)).map(tuple),
    seconds=st.dictionaries(st.text(), numbers), hourly_usd=known_or_not,
)  # fmt: skip
results = st.builds(
    Result,
    seconds=st.builds(Seconds, **{field.name: known_or_not for field in fields(Seconds)}),
    train=st.builds(
        TrainSummary,
        model=st.none() | st.text(),
        epochs=st.none() | st.integers(),
        epoch_s=st.lists(numbers).map(tuple),
        samples_per_s=known_or_not,
        loss=st.lists(numbers).map(tuple),
        accuracy=known_or_not,
        metrics=st.dictionaries(st.text(), numbers),
        judged_on=st.sampled_from([None, "test", "validation"]),
        step_ms=st.builds(StepMs, p50=known_or_not, p95=known_or_not),
        share=st.builds(Share, compute=known_or_not, communication=known_or_not, data=known_or_not),
    ),
    ranks=st.lists(st.builds(RankResult, exit_code=st.none() | st.integers(), step_ms_p50=known_or_not)).map(
        tuple
    ),
    first_error=st.none() | st.builds(FirstError),
    cost_usd=known_or_not,
)


def result(**changes) -> Result:
    plain = Result(
        run="r", cluster="c", mode="torchrun", script="train.py", status="succeeded", exit_code=0, nnodes=1,
        nproc_per_node=1, world_size=1, started_at="2026-11-21T05:46:25Z", ended_at=None, seconds=Seconds(),
        train=TrainSummary(), ranks=(RankResult(rank=0, local_rank=0, node="n0"),), first_error=None,
        cost_usd=None, dir="/runs/r",
    )  # fmt: skip
    return replace(plain, **changes)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runs | results)
def test_load_returns_what_dump_wrote(record):
    text = codec.dump(record)
    assert codec.load(type(record), text, "file") == record
    assert json.loads(text, parse_constant=pytest.fail)["format"] == 1


def test_to_json_writes_the_documented_result_keys():
    document = codec.to_json(result(ended_at="x", train=TrainSummary(epoch_s=(1.0,), loss=(0.5,))))
    assert list(document) == [
        "run", "cluster", "mode", "script", "status", "exit_code", "nnodes", "nproc_per_node", "world_size",
        "started_at", "ended_at", "seconds", "train", "ranks", "first_error", "cost_usd", "dir", "usage",
        "resumed_from", "reason", "checkpoints", "outputs", "output_totals", "files", "search", "hang",
        "commit", "name", "note", "tags", "endings", "logged_error", "joined", "outside",
    ]  # fmt: skip
    assert list(document["seconds"]) == [
        "total",
        "connect",
        "prepare",
        "preflight",
        "launch",
        "train",
        "collect",
    ]
    assert document["train"] == {
        "model": None, "dataset": None, "strategy": None, "device": None, "precision": None,
        "memory_savers": [], "graphs": None, "epochs": None,
        "epochs_before": None, "first_step_s": None,
        "first_step": None, "parts": None, "epoch_s": [1.0], "samples_per_s": None, "loss": [0.5],
        "loss_at": [], "loss_from": None, "loss_by": None,
        "accuracy": None, "perplexity": None, "tokens_per_s": None, "memory_gb": None, "mfu": None, "metrics": {},
        "judged_on": None,
        "step_ms": {"p50": None, "p95": None},
        "share": {"compute": None, "communication": None, "data": None},
    }  # fmt: skip


def test_dump_writes_nan_and_infinity_as_null():
    bad = result(cost_usd=math.inf, train=TrainSummary(loss=(1.0, math.nan), accuracy=math.nan))
    back = codec.load(Result, codec.dump(bad), "file")
    assert back.cost_usd is None
    assert back.train.accuracy is None
    assert back.train.loss[0] == 1.0
    assert math.isnan(back.train.loss[1])


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        ({"exit_code": "0"}, "key 'exit_code' should be a whole number, but is \"0\""),
        ({"exit_code": True}, "key 'exit_code' should be a whole number, but is true"),
        ({"nnodes": None}, "key 'nnodes' should be a whole number, but is null"),
        ({"nnodes": 1.0}, "key 'nnodes' should be a whole number, but is 1.0"),
        ({"script": 3}, "key 'script' should be text, but is 3"),
        (
            {"status": "lost"},
            "key 'status' should be one of 'running', 'succeeded', 'failed', 'stopped', but is \"lost\"",
        ),
        ({"mode": ["ray"]}, "key 'mode' should be text, but is [\"ray\"]"),
        ({"cost_usd": "free"}, "key 'cost_usd' should be a number, but is \"free\""),
        ({"cost_usd": False}, "key 'cost_usd' should be a number, but is false"),
        ({"seconds": []}, "key 'seconds' should be an object, but is []"),
        ({"seconds": {"totl": 1}}, "key 'seconds.totl' is not known; did you mean 'total'?"),
        ({"train": {"loss": [0.1, "x"]}}, "key 'train.loss[1]' should be a number, but is \"x\""),
        ({"train": {"loss": 0.1}}, "key 'train.loss' should be a list, but is 0.1"),
        ({"ranks": [{"rank": 0, "local_rank": 0}]}, "key 'ranks[0].node' is missing"),
        ({"ranks": "x" * 100}, "key 'ranks' should be a list, but is \"" + "x" * 56 + "..."),
        ({"statsu": 1}, "key 'statsu' is not known; did you mean 'status'?"),
    ],
)  # fmt: skip
def test_from_json_names_key_and_wrong_value(change, clause):
    document = codec.to_json(result()) | change
    with pytest.raises(CorruptFile) as caught:
        codec.from_json(Result, document, "r/result.json", rebuild="Do this.")
    assert str(caught.value) == f"'r/result.json' can't be used: {clause}. Do this."


def test_from_json_names_missing_key_without_default():
    document = codec.to_json(result())
    del document["status"]
    with pytest.raises(CorruptFile, match=r"^'f' can't be used: key 'status' is missing\.$"):
        codec.from_json(Result, document, "f")
    document = codec.to_json(result())
    del document["train"]["model"], document["ranks"][0]["device"]
    assert codec.from_json(Result, document, "f") == result()


def test_load_refuses_file_cut_off_at_any_byte():
    text = codec.dump(result())
    whole = text.rstrip()
    for length in range(len(whole)):
        with pytest.raises(CorruptFile, match=r"^'f' can't be used: it is (empty|cut off)"):
            codec.load(Result, text[:length], "f")
    assert codec.load(Result, whole, "f") == result()


@pytest.mark.parametrize(
    ("text", "clause"),
    [
        (b"", "it is empty"),
        (b"  \n", "it is empty"),
        (b"[1]", "it holds [1], no object"),
        (b"\xff\xfe", "it is cut off or no JSON"),
        (b"[" * 100_000, "it is cut off or no JSON"),
        (b"{}", "key 'format' should be 1, but is null"),
        (b'{"format": "1"}', "key 'format' should be 1, but is \"1\""),
        (b'{"format": true}', "key 'format' should be 1, but is true"),
        (b'{"format": 0}', "key 'format' should be 1, but is 0"),
        (b'{"format": 1}', "key 'run' is missing"),
    ],
)
def test_load_refuses_documents_gpuctl_did_not_write(text, clause):
    with pytest.raises(CorruptFile) as caught:
        codec.load(Result, text, "f", rebuild="Do this.")
    assert str(caught.value).startswith(f"'f' can't be used: {clause}")
    assert str(caught.value).endswith(". Do this.")


def test_load_refuses_newer_format_before_checking_keys():
    with pytest.raises(NewerFormat) as caught:
        codec.load(Result, b'{"format": 7, "new": 1}', "f", rebuild="Do this.")
    assert (
        str(caught.value)
        == "'f' was written by a newer gpuctl (format 7; this one reads up to 1). Upgrade gpuctl."
    )


@dataclass(frozen=True, kw_only=True)
class Kinds:
    path: Path
    perhaps: Path | None
    flag: bool
    anything: dict[str, object] | None = None


def test_codec_reads_and_checks_paths_and_booleans():
    kinds = Kinds(path=Path("/a b"), perhaps=None, flag=True)
    assert codec.from_json(Kinds, codec.to_json(kinds), "f") == kinds
    with pytest.raises(CorruptFile, match="'flag' should be true or false, but is 1"):
        codec.from_json(Kinds, codec.to_json(kinds) | {"flag": 1}, "f")
    with pytest.raises(CorruptFile, match="'path' should be a path, but is null"):
        codec.from_json(Kinds, codec.to_json(kinds) | {"path": None}, "f")


@dataclass(frozen=True, kw_only=True)
class Named:
    """Fields whose keys differ from their names."""

    from_: int = 1
    other: int = field(default=2, metadata=codec.key("second"))
    absent: int | None = field(default=None, metadata=codec.OMITTED)
    empty: int | None = None


def test_keys_of_fields_may_have_other_names_and_may_be_omitted():
    assert codec.to_json(Named()) == {"from": 1, "second": 2, "empty": None}
    assert codec.to_json(Named(absent=3)) == {"from": 1, "second": 2, "absent": 3, "empty": None}
    for item in (Named(), Named(absent=3)):
        assert codec.from_json(Named, codec.to_json(item), "file") == item
