"""Test the syntax of a search, refused searches, and the choice of the best trial."""

import pytest

from gpuctl.errors import Usage
from gpuctl.option_table.search_space import Param, parse_param, parse_params, trials_of


@pytest.mark.parametrize(
    ("word", "param"),
    [
        ("lr=loguniform(1e-4,1e-1)", Param(name="lr", kind="loguniform", values=(1e-4, 1e-1))),
        ("lr=uniform(0, 0.5)", Param(name="lr", kind="uniform", values=(0, 0.5))),
        ("batch-size=randint(8,65)", Param(name="batch-size", kind="randint", values=(8, 65))),
        ("lr=grid(0.1,0.01,0.1)", Param(name="lr", kind="grid", values=(0.1, 0.01))),
        ("opt=choice(sgd, adam,3,0.5)", Param(name="opt", kind="choice", values=("sgd", "adam", 3, 0.5))),
    ],
)
def test_parse_param_reads_each_distribution(word: str, param: Param) -> None:
    assert parse_param(word) == param


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("lr", "--param 'lr' is not understood. Write it like lr=loguniform(1e-4,1e-1), in quotes."),
        ("lr=0.1", "--param 'lr=0.1' is not understood. A list is: --param 'lr=grid(0.1)'"),
        ("lr=0.1,0.01", "--param 'lr=0.1,0.01' is not understood. A list is: --param 'lr=grid(0.1,0.01)'"),
        (
            "opt=[sgd, adam]",
            "--param 'opt=[sgd, adam]' is not understood. A list is: --param 'opt=grid(sgd,adam)'",
        ),
        ("lr=grid", "--param 'lr=grid' is not understood. Write it like this: --param 'lr=grid(0.1,0.01)'"),
        (
            "n=randint1,8",
            "--param 'n=randint1,8' is not understood. Write it like this: --param 'n=randint(1,8)'",
        ),
        (
            "lr=uniform(0.1",
            "--param 'lr=uniform(0.1' is not understood. Write it like this: --param 'lr=uniform(0",
        ),
        ("=1", "--param '=1' is not understood. Write it like lr=loguniform(1e-4,1e-1), in quotes."),
        (
            "lr=logunifrom(1,2)",
            "--param lr: there is no 'logunifrom'; did you mean 'loguniform'? There are uniform(0.1,0.9),",
        ),
        ("lr=uniform(1)", "--param lr: uniform takes two numbers. Write it like lr=uniform(0.1,0.9)."),
        ("lr=uniform(a,b)", "--param lr: uniform takes two numbers."),
        ("lr=uniform(2,1)", "--param lr: 2 is not below 1."),
        ("lr=uniform(nan,1)", "--param lr: nan is not below 1."),
        ("lr=loguniform(0,1)", "--param lr: loguniform begins above 0; uniform may begin at 0."),
        ("n=randint(1,2.5)", "--param n: randint takes whole numbers. For others there is uniform(1,2.5)."),
        ("n=choice()", "--param n: choice needs at least one value, as in n=choice(sgd,adam)."),
    ],
)
def test_parse_param_refuses_malformed_params_with_example(word: str, sentence: str) -> None:
    with pytest.raises(Usage) as raised:
        parse_param(word)
    assert str(raised.value).startswith(sentence)


def test_parse_params_refuses_duplicate_name() -> None:
    with pytest.raises(Usage, match="--param a is given twice"):
        parse_params(["a=uniform(0,1)", "b=uniform(0,1)", "a=choice(1)"])


@pytest.mark.parametrize(
    ("words", "trials", "total"),
    [
        (["lr=uniform(0,1)"], None, 8),
        (["lr=uniform(0,1)"], 3, 3),
        (["lr=grid(0.1,0.01,0.001)"], None, 3),
        (["lr=grid(0.1,0.01,0.001)", "opt=grid(sgd,adam)", "width=randint(8,65)"], 2, 12),
    ],
)
def test_trials_of_a_grid_are_its_combinations(words: list[str], trials: int | None, total: int) -> None:
    assert trials_of(parse_params(words), trials) == total


def test_trials_of_refuses_a_grid_without_bounds() -> None:
    values = ",".join(map(str, range(200)))
    with pytest.raises(Usage, match=r"make 40,000 trials; 10,000 are possible"):
        trials_of(parse_params([f"a=grid({values})", f"b=grid({values})"]), None)
