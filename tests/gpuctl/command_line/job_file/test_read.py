"""Test reading a job's file, and its errors."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuctl.command_line.job_file.keys import option_keys
from gpuctl.command_line.job_file.read import Job, read_job
from inventories.errors import InvalidInput
from inventories.specs.spec import Spec
from inventories.specs.validate import spec_keys

FULL = """
cluster:
  cluster: a10
  shape: VM.GPU.A10.2
  count: 2
  ttl: 4h
  network: {public_ip: false}
environment:
  requirements: needs.txt
  pip: einops
  variables:
    VERSION: 1.10
    FLAG: yes
    HF_TOKEN:
include:
  - data
  - ../shared
run:
  script: src/my.py
  arguments: [--lr, 1e-3, --seed, 007, --note, "a b", true]
  mode: ray
  nnodes: 1:4
  nproc_per_node: 2
  max_restarts: 3
outputs: ["*.pt", runs]
"""


def options_of(job: Job) -> dict[str, Any]:
    return {key.keyword: value for key, value in job.options.items()}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for item in (folder / "src", folder / "data", tmp_path / "shared"):
        item.mkdir(parents=True)
    (folder / "src" / "my.py").write_text("")
    (folder / "needs.txt").write_text("")
    return folder


def read(project: Path, text: str) -> Job:
    path = project / "gpuctl.yaml"
    path.write_text(text)
    return read_job(path)


def refusal(project: Path, text: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        read(project, text)
    return str(caught.value).replace(f"{project}/", "")


def test_read_job_returns_spec_script_and_options_as_commands_take_them(project: Path) -> None:
    job = read(project, FULL)
    assert job.spec == Spec(cluster="a10", shape="VM.GPU.A10.2", count=2, ttl_s=14400, public_ip=False), (
        "the spec's own schema"
    )
    assert job.folder == project
    assert job.script == project / "src" / "my.py"
    assert job.arguments == ("--lr", "1e-3", "--seed", "007", "--note", "a b", "true"), "as they are written"
    assert options_of(job) == {
        "requirements": project / "needs.txt",
        "pip": ("einops",),
        "env": ("VERSION=1.10", "FLAG=yes", "HF_TOKEN"),
        "include": (project / "data", project / "../shared"),
        "mode": "ray",
        "nnodes": "1:4",
        "nproc_per_node": "2",
        "max_restarts": 3,
        "bring": ("*.pt", "runs"),
    }


@pytest.mark.parametrize("text", ["", "# all of it is a comment\n", "cluster:\nrun:\nenvironment:\n"])
def test_read_job_accepts_a_file_that_says_nothing(project: Path, text: str) -> None:
    job = read(project, text)
    assert (job.spec, job.options, job.script, job.arguments) == (None, {}, None, ())


def test_read_job_takes_a_text_for_the_name_of_the_cluster(project: Path) -> None:
    assert read(project, "cluster: a10\n").spec == Spec(cluster="a10")


def test_read_job_takes_off_as_it_is_written(project: Path) -> None:
    assert options_of(read(project, "run: {hang_after: off}")) == {"hang_after": "off"}


def test_read_job_takes_a_module_and_arguments_of_the_built_in_job(project: Path) -> None:
    assert read(project, "run: {module: pkg.mod}").module == "pkg.mod"
    assert read(project, "run: {arguments: [--model, mlp]}").arguments == ("--model", "mlp")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "\n\ninclde: data\n",
            "gpuctl.yaml:3: key 'inclde' is not known; did you mean 'include'? Allowed: cluster, run, environment, ",
        ),
        ("run:\n  scritp: a\n", "gpuctl.yaml:2: key 'run.scritp' is not known; did you mean 'script'?"),
        ("cluster:\n  shap: a\n", "gpuctl.yaml:2: key 'cluster.shap' is not known; did you mean 'shape'?"),
        ("cluster:\n  network: {subnet: a}\n", "gpuctl.yaml:2: key 'cluster.network.subnet' is not known"),
        ("shape: a\n", "gpuctl.yaml:1: key 'shape' is not known here; put it under 'cluster'."),
        ("nnodes: 2\n", "gpuctl.yaml:1: key 'nnodes' is not known here; put it under 'run'."),
        ("run:\n  include: x\n", "gpuctl.yaml:2: key 'run.include' is not known here; put it at the top."),
        ("run: {args: []}\n", "gpuctl.yaml:1: key 'run.args' is not known; did you mean 'run.arguments'?"),
        ("env: {A: 1}\n", "gpuctl.yaml:1: key 'env' is not known; did you mean 'environment.variables'?"),
        ("run: {resume: true}\n", "gpuctl.yaml:1: key 'run.resume' is not known"),
        ("run: {fresh: true}\n", "gpuctl.yaml:1: key 'run.fresh' is not known"),
        ("run: {share_outputs: true}\n", "gpuctl.yaml:1: key 'run.share_outputs' is not known"),
        ("run: {skip_preflight: true}\n", "gpuctl.yaml:1: key 'run.skip_preflight' is not known"),
        ("- a\n", "gpuctl.yaml:1: the file holds [\"a\"]; it should be keys with values."),
        ("run: 3\n", "gpuctl.yaml:1: key 'run' holds 3; it should be keys with values."),
        ("cluster: 7\n", "gpuctl.yaml:1: key 'cluster': Cluster name 7 can't be used: "),
        ("cluster: {count: two}\n", "gpuctl.yaml:1: key 'cluster.count': Count 'two' can't be used: "),
        ("cluster:\n  setup:\n    - fab: {}\n", "gpuctl.yaml:3: key 'cluster.setup': {} can't be used: "),
        ("run: {detach: 1}\n", "key 'run.detach': 1 can't be used: it should be true or false."),
        ("run: {max_restarts: x}\n", "key 'run.max_restarts': 'x' can't be used: it should be a whole number."),
        ("run: {max_restarts: 2000}\n", "key 'run.max_restarts': 2000 is not in the range 0<=x<=1000."),
        ("run: {mode: slurm}\n", "key 'run.mode': 'slurm' is not one of 'torchrun', 'ray'."),
        ("run: {mode: 3}\n", "key 'run.mode': '3' is not one of 'torchrun', 'ray'."),
        ("run: {nnodes: true}\n", "run.nnodes true is not possible: give a number of nodes, or MIN:MAX"),
        ("run:\n  detach: true\n  nnodes: 0\n", "gpuctl.yaml:3: run.nnodes 0 is not possible: it must be "),
        ("run:\n  mode: ray\n  hang_after: 10\n", "gpuctl.yaml:3: run.hang_after '10' can't be used: "),
        ("run:\n  mode: ray\n  hang_after: soon\n", "gpuctl.yaml:3: run.hang_after 'soon' can't be used: "),
        ("run:\n  mode: ray\n  on_hang: restart\n", "gpuctl.yaml:3: run.on_hang restart counts as one of "),
        ("run:\n  script: gone.py\n", "gpuctl.yaml:2: key 'run.script': there is no file gone.py."),
        ("run:\n  script: src/my.py\n  module: m\n", "gpuctl.yaml:3: key 'run.script' is there, too: "),
        ("run:\n  arguments: --lr 1\n", "'--lr 1' can't be used: it should be a list, as in [--lr, 1]."),
        ("run: {nproc_per_node: [1]}\n", "'run.nproc_per_node': [1] can't be used: it should be auto or a number."),
        ("run: my.py\n", "key 'run' holds 'my.py'; put it under 'run', as in 'script: my.py'."),
        ("run:\n  arguments: [[1]]\n", "key 'run.arguments': [1] can't be used: it should be text; "),
        ("environment: {requirements: no.txt}\n", "key 'environment.requirements': File 'no.txt' does not exist."),
        ("run:\n  name: '7'\n", "gpuctl.yaml:2: key 'run.name': Run name '7' can't be used: with only 0-9, a-f "),
        ("run: {tags: [a=b]}\n", "key 'run.tags': [\"a=b\"] can't be used: it should be lines such as NAME: value."),
        ("run:\n  tags:\n    sweep:\n", "gpuctl.yaml:3: key 'run.tags.sweep': Tag 'sweep' can't be used: write K=V"),
        ("environment: {variables: [A]}\n", "key 'environment.variables': [\"A\"] can't be used: it should be "),
        ("environment:\n  variables:\n    A B: 1\n", "gpuctl.yaml:3: key 'environment.variables.A B': --env "),
        ("include: {a: b}\n", "key 'include': {\"a\": \"b\"} can't be used: it should be a list, each item after "),
        ("include:\n- data\n- dta\n", "gpuctl.yaml:3: key 'include': there is no file or folder "),
        (
            "environment:\n  python: /usr/bin/python3\n  pip: [rich]\n",
            "gpuctl.yaml:2: environment.python uses an interpreter as it is, and installs nothing: leave it out, or "
            "leave out environment.pip, environment.requirements and environment.wheels.",
        ),
        ("include: [3]\n", "key 'include': 3 can't be used: it should be text; "),
        ('include: ["a\\0b"]\n', "can't be used: it should be text; "),
        ("outputs: ['../x']\n", "gpuctl.yaml:1: outputs '../x' names nothing in the project's folder: "),
        ("a: &a [x]\nb: [*a, *a]\n", "gpuctl.yaml:2: aliases ('*a') are not supported. Write the value out."),
        ("run: !!python/object:os.system x\n", "gpuctl.yaml:1: the tag "),
        ("include: !!set {x}\n", "gpuctl.yaml:1: the tag 'tag:yaml.org,2002:set' is not supported."),
        ("run:\n\tscript: x\n", "Indent with spaces, not with tabs."),
        ("include: a\ninclude: b\n", "gpuctl.yaml:2: key 'include' is there a second time; the first is in line 1."),
        ("[" * 100_000, "gpuctl.yaml:1: this is nested more than 50 deep."),
    ],
)  # fmt: skip
def test_read_job_refuses_with_line_and_nearest_key(project: Path, text: str, sentence: str) -> None:
    assert sentence in refusal(project, text)


def test_read_job_names_all_problems_in_the_order_of_the_file(project: Path) -> None:
    output = refusal(project, "outptus: x\nrun:\n  scrip: y\ncluster:\n  cuont: 2\n")
    assert [line.split(" is not")[0] for line in output.splitlines()] == [
        "gpuctl.yaml:1: key 'outptus'",
        "gpuctl.yaml:3: key 'run.scrip'",
        "gpuctl.yaml:5: key 'cluster.cuont'",
    ]


@pytest.mark.parametrize(
    "text", ["include: [data, ../x]", "root: ..", "environment: {requirements: ../x}", "run: {script: ../x}"]
)
def test_read_job_refuses_paths_out_of_the_repository(project: Path, text: str) -> None:
    inner = project / "inner"
    (inner / ".git").mkdir(parents=True)
    (project / "x").write_text("")
    assert f"leads out of {inner}, the project's repository. Copy what the script needs" in refusal(
        inner, text
    )
    (project / "wheels").mkdir()
    assert options_of(read(inner, "environment: {wheels: ../wheels}")) == {"wheels": inner / "../wheels"}


WORDS = sorted(
    {part for key in option_keys() for part in key.path}
    | {part for key in spec_keys() for part in key.split(".")}
    | {"script", "arguments", "run", "fab", "A"}
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("x" * 5000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=3), VALUES, max_size=4))
def test_read_job_takes_or_refuses_whatever_is_written(project: Path, data: dict[str, Any]) -> None:
    with suppress(InvalidInput):
        read(project, yaml.safe_dump(data))
