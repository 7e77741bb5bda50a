"""Test the requirements of an environment, its key, the build of torch, and uv's command lines."""

import json
import subprocess
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from node_facts import facts

from remote.errors import DiskFull, PreflightFailed
from remote.facts import Facts
from remote.node.environments import build
from remote.python_env import building, compared
from remote.python_env.backend import backend_of, settings
from remote.python_env.requirements import (
    BadRequirements,
    Requirements,
    built_in_requirements,
    key_of,
    requirements_of,
)

PROJECT = '[project]\nname = "mine"\nrequires-python = ">=3.11"\ndependencies = ["torch>=2.6"]\n'


def write(root: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def wheel(path: Path, record: str) -> None:
    with ZipFile(path, "w") as archive:
        archive.writestr("tiny/_vendor/other-1.0.dist-info/RECORD", "of a package within it")
        archive.writestr("tiny-1.0.dist-info/RECORD", record)


def of(text: str, **more: Any) -> Requirements:
    fields = {"source": "requirements.txt", "kind": "requirements", "files": (("requirements.txt", text),)}
    return Requirements(**{**fields, **more})


def test_wanted_takes_pip_then_lock_then_requirements_then_pyproject(tmp_path: Path) -> None:
    assert requirements_of(tmp_path) is None
    write(tmp_path, pyproject_toml="[tool.ruff]\nline-length = 100\n")
    assert requirements_of(tmp_path) is None
    write(tmp_path, pyproject_toml=PROJECT)
    result = requirements_of(tmp_path)
    assert result == Requirements(
        source="pyproject.toml", kind="project", files=(("pyproject.toml", PROJECT),), python=">=3.11"
    )
    write(tmp_path, requirements_txt="torch\n")
    result = requirements_of(tmp_path)
    assert (result.source, result.kind, result.files, result.python) == (
        "requirements.txt", "requirements", (("requirements.txt", "torch\n"),), ">=3.11",
    )  # fmt: skip
    write(tmp_path, uv_lock="version = 1\n")
    result = requirements_of(tmp_path)
    assert (result.source, result.kind) == ("uv.lock", "lock")
    assert result.files == (("uv.lock", "version = 1\n"), ("pyproject.toml", PROJECT))
    named = requirements_of(tmp_path, pip=["torch==2.13.0", "einops"])
    assert named == Requirements(
        source="--pip", kind="requirements", files=(("named.txt", "torch==2.13.0\neinops\n"),)
    )
    built_in = requirements_of(tmp_path, built_in=True)
    assert built_in.source == "the built-in job"
    assert "torch>=" in built_in.files[0][1]


def test_wanted_takes_a_named_file_of_each_kind(tmp_path: Path) -> None:
    write(tmp_path, pyproject_toml=PROJECT, uv_lock="version = 1\n", requirements_txt="torch\n")
    (tmp_path / "pylock.gpu.toml").write_text('lock-version = "1.0"\nrequires-python = ">=3.12"\n')
    result = {
        name: requirements_of(tmp_path, requirements=tmp_path / name)
        for name in ("uv.lock", "pylock.gpu.toml", "requirements.txt", "pyproject.toml")
    }
    report = {
        name: (item.kind, item.python, item.names_its_build)
        for name, item in result.items()
        if item is not None
    }
    assert report == {
        "uv.lock": ("lock", ">=3.11", True),
        "pylock.gpu.toml": ("pylock", ">=3.12", True),
        "requirements.txt": ("requirements", None, False),
        "pyproject.toml": ("project", ">=3.11", False),
    }
    extra = requirements_of(
        tmp_path, requirements=tmp_path / "pyproject.toml", pip=["einops"], always=["ray"]
    )
    assert (extra.files, extra.always) == ((("pyproject.toml", PROJECT),), ("ray", "einops"))


def test_wanted_takes_the_nearest_folder_that_lists_something(tmp_path: Path) -> None:
    typed_in = tmp_path / "repository" / "apps" / "first"
    typed_in.mkdir(parents=True)
    (tmp_path / "requirements.txt").write_text("outside")
    assert requirements_of(typed_in, root=tmp_path / "repository") is None
    (tmp_path / "repository" / "requirements.txt").write_text("numpy")
    result = requirements_of(typed_in, root=tmp_path / "repository")
    assert (result.source, result.files) == ("../../requirements.txt", (("requirements.txt", "numpy"),))
    (typed_in / "requirements.txt").write_text("scipy")
    nearest = requirements_of(typed_in, root=tmp_path / "repository")
    assert nearest.source == "requirements.txt"


def test_wanted_takes_the_lock_of_a_workspace_for_its_member(tmp_path: Path) -> None:
    frame = "[tool.uv.workspace]\nmembers = ['libs/*']\nexclude = ['libs/apart']\n"
    write(tmp_path, pyproject_toml=frame, uv_lock="version = 1\n", libs__one__pyproject_toml=PROJECT)
    write(tmp_path, libs__apart__pyproject_toml=PROJECT)
    (tmp_path / "libs" / "one" / "deep").mkdir()
    member = requirements_of(tmp_path / "libs" / "one", root=tmp_path)
    assert member == Requirements(
        source="../../uv.lock", kind="lock", python=">=3.11", package="mine",
        files=(("uv.lock", "version = 1\n"), ("pyproject.toml", frame), ("libs/one/pyproject.toml", PROJECT)),
    )  # fmt: skip
    named = requirements_of(tmp_path / "libs" / "one" / "deep", requirements=tmp_path / "uv.lock")
    assert (named and named.package) == "mine"
    assert building.commands(member, None)[1][-2:] == ["--package", "mine"]
    whole = requirements_of(tmp_path, root=tmp_path)
    assert whole is not None
    assert building.commands(whole, None)[1][-1] == "--all-packages"
    apart = requirements_of(tmp_path / "libs" / "apart", root=tmp_path)
    assert (apart and apart.kind) == "project"
    assert key_of(member, None) != key_of(whole, None)


def test_wanted_includes_nested_requirements_files(tmp_path: Path) -> None:
    write(tmp_path, a__top_txt="-r more/x.txt  # more\n--constraint=pins.txt\ntorch\n")
    write(tmp_path, a__pins_txt="numpy<3\n", a__more__x_txt="-r ../../up.txt\n", up_txt="-c a/pins.txt\n")
    above = requirements_of(tmp_path, requirements=tmp_path / "a" / "top.txt")
    assert [name for name, _ in above.files] == ["a/top.txt", "a/more/x.txt", "a/pins.txt", "up.txt"]
    assert building.commands(above, None)[1][-2:] == ["-r", "a/top.txt"]
    write(tmp_path, a__more__x_txt=f"-r {tmp_path}/up.txt\n")
    with pytest.raises(BadRequirements, match=r"an absolute path, .* own folder: \.\./\.\./up.txt"):
        requirements_of(tmp_path, requirements=tmp_path / "a" / "top.txt")
    write(tmp_path, a__more__x_txt="-r y.txt\n-r https://example.org/z.txt\n", a__more__y_txt="einops\n")
    result = requirements_of(tmp_path, pip=["rich"], requirements=tmp_path / "a" / "top.txt")
    assert result.files == (
        ("named.txt", "rich\n-r top.txt\n"),
        ("top.txt", "-r more/x.txt  # more\n--constraint=pins.txt\ntorch\n"),
        ("more/x.txt", "-r y.txt\n-r https://example.org/z.txt\n"),
        ("pins.txt", "numpy<3\n"),
        ("more/y.txt", "einops\n"),
    )


@pytest.mark.parametrize("conda", [False, True])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "-r ../../secret.txt",
            r"/secret\.txt, which is not in .*/repo, and gpuctl sends no file from outside",
        ),
        ("--constraint=link.txt", r"/secret\.txt, which is not in"),
        ("-r /etc/hostname", "an absolute path, which no node has"),
        ("-r ../.env", r"/\.env, which is not sent to the nodes: it may hold credentials"),
        ("-c .aws/credentials", "which is not sent to the nodes: it may hold credentials"),
    ],
)
def test_wanted_sends_no_file_from_outside_and_none_with_credentials(
    tmp_path: Path, line: str, message: str, conda: bool
) -> None:
    folder = tmp_path / "repo" / "jobs"
    write(tmp_path, secret_txt="password\n", repo__jobs___aws__credentials="key\n", repo___env="key\n")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    subprocess.run(["git", "init", "-q", tmp_path / "repo"], check=True)
    name, text = (
        ("environment.yml", f"{CONDA}      - {line}\n") if conda else ("requirements.txt", f"{line}\n")
    )
    (folder / name).write_text(text)
    with pytest.raises(BadRequirements, match=message):
        requirements_of(folder)


def test_wanted_takes_files_of_the_repository_and_of_the_folder_that_is_sent(tmp_path: Path) -> None:
    write(tmp_path, repo__base_txt="torch\n", repo__jobs__requirements_txt="-r ../base.txt\n")
    with pytest.raises(BadRequirements, match=r"is not in .*/jobs, and"):
        requirements_of(tmp_path / "repo" / "jobs")
    assert requirements_of(tmp_path / "repo" / "jobs", root=tmp_path / "repo") is not None
    subprocess.run(["git", "init", "-q", tmp_path / "repo"], check=True)
    assert requirements_of(tmp_path, requirements=tmp_path / "repo" / "jobs" / "requirements.txt") is not None


def test_conda_file_has_included_requirements_once_and_constraints_in_a_file(tmp_path: Path) -> None:
    write(
        tmp_path,
        environment_yml=CONDA + "      - -r r.txt\n      - -c pins/a.txt\n",
        r_txt="-r r.txt\nrich\n",
    )
    write(tmp_path, pins__a_txt="numpy<3\n-c b.txt\n", pins__b_txt="-c a.txt\nrich<99\n")
    result = requirements_of(tmp_path)
    assert dict(result.files)["environment.yml"].endswith("- einops\n  - rich\n  - -c constraints.txt\n")
    assert dict(result.files)["constraints.txt"] == "numpy<3\nrich<99\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-e .", "is a folder on this computer"),
        ("--editable=src", "is a folder on this computer"),
        (".", "is a folder on this computer"),
        ("./pkg", "names .*/pkg, which is not on this computer"),
        ("/opt/pkg", "names /opt/pkg, which is not on this computer"),
        ("file:///opt/x.whl", "names /opt/x.whl, which is not"),
        ("numpy @ file:///croot/numpy_1/work", r"pip list --format=freeze"),
        ("../up", "which is not on this computer"),
        ("~no-such-user/x", "names .*/~no-such-user/x, which is not on this computer"),
        ("./x.whl", "is a file on this computer"),
        ("x.whl", "is a file on this computer"),
    ],
)
def test_wanted_refuses_local_places_without_a_project(tmp_path: Path, line: str, message: str) -> None:
    write(tmp_path, requirements_txt=f"torch\n{line}\n", src__a_py="", x_whl="")
    with pytest.raises(BadRequirements, match=f"requirements.txt, line 2: `.*` .*{message}"):
        requirements_of(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "-e ../lib[a,b]", "-e file:../lib[a,b]", "--editable ../lib[a, b]", "--editable=../lib[a,b]", "-e../lib[a,b]",
        "../lib[a,b]", "mine[a,b] @ file:../lib", "mine [a,b] @ ../lib", "-e '../lib[a,b]'", "../lib/[a,b]  # why",
        '../lib[a,b] ; python_version > "3.8"', "sub/../../lib[a,b]",
    ],
)  # fmt: skip
def test_project_that_a_line_names_by_its_place_is_installed_from_there(tmp_path: Path, line: str) -> None:
    write(tmp_path, lib__pyproject_toml="[tool.x]\n", p__requirements_txt=f"torch\n{line}\n", p__sub__a="")
    expected = ((tmp_path / "lib", ("a", "b")),)
    result = requirements_of(tmp_path / "p")
    assert (result.projects, result.files) == (expected, (("requirements.txt", "torch\n\n"),))
    named = requirements_of(tmp_path / "p", pip=[line])
    assert (named.projects, named.files) == (expected, (("named.txt", ""),))
    conda = CONDA + f"      - {json.dumps(line)}\n"
    write(tmp_path, p__environment_yml=conda)
    of_conda = requirements_of(tmp_path / "p", requirements=tmp_path / "p" / "environment.yml")
    assert (of_conda.projects, "lib" in of_conda.files[0][1]) == (expected, False)


@pytest.mark.parametrize(
    "line",
    [
        "-rmore.txt", "eager", "e.g", "pkg @ https://example.org/x.whl", "-c c.txt", "x[a]>=1 ; os_name == 'posix'",
        "git+https://example.org/x.git", "--extra-index-url https://example.org/simple", "https://example.org/x.whl",
        "zope.interface", "-f https://example.org/wheels/",
    ],
)  # fmt: skip
def test_wanted_accepts_lines_that_are_no_local_place(tmp_path: Path, line: str) -> None:
    write(tmp_path, requirements_txt=f"{line}\n", more_txt="", c_txt="")
    result = requirements_of(tmp_path)
    assert result.files[0] == ("requirements.txt", f"{line}\n")


def test_group_that_pip_names_is_installed_with_the_groups_that_it_includes(tmp_path: Path) -> None:
    write(
        tmp_path,
        pyproject_toml="""[dependency-groups]
base = ["einops"]
Train_It = [{include-group = "base"}, "rich>=13", "x[y] ; os_name == 'posix'"]
round = [{include-group = "round"}]
""",
    )
    (tmp_path / "sub").mkdir()
    for word in ("--group train-it", "--group=Train_It"):
        result = requirements_of(tmp_path / "sub", root=tmp_path, pip=[word, "tqdm"])
        assert result.files == (("named.txt", "einops\nrich>=13\nx[y] ; os_name == 'posix'\ntqdm\n"),)
    for name in ("other", "round"):
        with pytest.raises(
            BadRequirements, match=f"no dependency group {name} .* Its groups: base, Train_It, round"
        ):
            requirements_of(tmp_path, pip=[f"--group {name}"])


def test_editable_repository_is_installed_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, requirements_txt="-e git+https://example.org/mine.git@v1#egg=mine\n")
    result = requirements_of(tmp_path)
    assert result.files == (("requirements.txt", "git+https://example.org/mine.git@v1#egg=mine\n"),)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-8"])
def test_requirements_of_a_windows_shell_are_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "requirements.txt").write_bytes("x==1\r\ny==2\r\n".encode(encoding))
    result = requirements_of(tmp_path)
    assert result.files == (("requirements.txt", "x==1\ny==2\n"),)


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"pyproject_toml": "[project\n"}, {}, "pyproject.toml can't be read"),
        ({"pyproject_toml": "project = 1\n"}, {}, "pyproject.toml: project has to be a table"),
        (
            {"pyproject_toml": '[project]\ndependencies = ["x", 1]'},
            {},
            "project.dependencies.2 has to be a text in quotes",
        ),
        (
            {"pyproject_toml": '[dependency-groups]\na = "x"'},
            {"pip": ["--group a"]},
            "groups.a has to be a list",
        ),
        ({"pyproject_toml": "[project]\n", "uv_lock": "<<<<<<< HEAD\n"}, {}, "uv.lock can't be read"),
        ({}, {"requirements": Path("none.txt")}, "none.txt can't be read"),
        ({}, {"wheels": Path()}, "nothing says what"),
        (
            {"requirements_txt": "x>=2  # why\n-r more.txt", "more_txt": "y"},
            {"wheels": Path("/nowhere"), "always": ["torch"]},
            "no wheel .* pip download -d /nowhere --only-binary :all: 'x>=2' y torch uv$",
        ),
        (
            {"pyproject_toml": '[project]\nname = "n"\ndependencies = ["x"]'},
            {"wheels": Path("/nowhere"), "always": ["torch"]},
            "no wheel .* x torch uv$",
        ),
        (
            {},
            {"requirements": Path("environment.yml")},
            "environment.yml can't be read",
        ),
        (
            {},
            {"requirements": Path("uv.lock"), "pip": ["a"]},
            "uv.lock says exactly what is installed: leave out --pip",
        ),
    ],
)
def test_wanted_names_what_it_cannot_read(tmp_path: Path, files: Any, options: Any, message: str) -> None:
    with pytest.raises(BadRequirements, match=message):
        requirements_of(write(tmp_path, **files), **options)


def test_wanted_names_a_damaged_wheel(tmp_path: Path) -> None:
    write(tmp_path, bad_whl="no zip", requirements_txt="bad")
    with pytest.raises(BadRequirements, match=r"bad.whl is not a wheel"):
        requirements_of(tmp_path, wheels=tmp_path)


def test_built_in_requirements_take_torch_packages_of_the_train_extra() -> None:
    lines = [
        "click>=8",
        'torch>=2.6; extra == "train"',
        'torchmetrics ; extra == "train"',
        'x; extra == "dev"',
    ]
    assert built_in_requirements(lines) == ["torch>=2.6", "torchmetrics"]


def test_key_of_ignores_comments_and_whitespace() -> None:
    key = key_of(of("torch\neinops\n"), "cpu")
    assert key == "fbc6b66c7d462a3c", (
        "another key builds every environment anew: raise FORMAT on purpose only"
    )
    assert key_of(of("# a comment\ntorch   # ours\n\n  einops"), "cpu") == key
    assert key_of(of("torch\r\neinops\r\n"), "cpu") == key
    assert key_of(of("torch\neinops\n", source="elsewhere"), "cpu") == key


def test_key_of_differs_by_packages_python_backend_and_wheels() -> None:
    with_wheels = of("torch", wheels=(("torch.whl", "a"),))
    project = (("pyproject.toml", PROJECT),)
    different = [
        key_of(of("torch"), "cpu"),
        key_of(of("torch"), "cu126"),
        key_of(of("torch==2.13.0"), "cpu"),
        key_of(of("torch", python=">=3.12"), "cpu"),
        key_of(with_wheels, "cpu"),
        key_of(of("torch", wheels=(("torch.whl", "b"),)), "cpu"),
        key_of(of("", kind="project", files=project), "cpu"),
        key_of(of("", kind="lock", files=(("uv.lock", "1"), *project)), "cpu"),
        key_of(of("", kind="lock", files=(("uv.lock", "2"), *project)), "cpu"),
    ]
    assert len(set(different)) == len(different)
    assert key_of(with_wheels, "cu126") == key_of(with_wheels, "cpu")


def test_key_of_a_pyproject_counts_only_what_installs() -> None:
    def key(text: str) -> str:
        return key_of(of("", kind="project", files=(("pyproject.toml", text),)), "cpu")

    assert key(PROJECT + "[tool.ruff]\nline-length = 3\n") == key(PROJECT)
    assert key(PROJECT + '[tool.uv]\nindex-url = "https://example.org"\n') != key(PROJECT)


def gpu(name: str, driver: str) -> dict[str, Any]:
    return {"index": 0, "name": name, "memory_mb": 1, "driver": driver}


@pytest.mark.parametrize(
    ("nodes", "backend"),
    [
        ([[]], "cpu"),
        ([[], []], "cpu"),
        ([[gpu("NVIDIA A10", "580.65.06")]], "driver 580.65.06"),
        ([[gpu("NVIDIA H200", "590.1")]], "driver 580.65.06"),
        ([[gpu("NVIDIA A10", "570.172.08")]], "driver 525.60.13"),
        ([[gpu("NVIDIA A10", "580.95.05")], [gpu("NVIDIA A10", "550.90.07")]], "driver 525.60.13"),
        ([[gpu("NVIDIA A10", "580.95.05")], []], "driver 580.65.06"),
        ([[gpu("NVIDIA A10", "525.60.11")]], "driver 450.80.02"),
        ([[gpu("Tesla K80", "418.40")]], "cpu"),
        ([[gpu("Tesla V100-SXM2-16GB", "580.95.05")]], "cu126"),
        ([[gpu("Tesla P100-SXM2-16GB", "535.1")]], "cu126"),
        ([[gpu("Tesla V100-SXM2-16GB", "470.1")]], "driver 450.80.02"),
        ([[gpu("NVIDIA L40S", "580.95.05")]], "driver 580.65.06"),
    ],
)
def test_backend_of_picks_the_build_for_the_oldest_driver(nodes: Any, backend: str) -> None:
    assert backend_of({f"node-{number}": gpus for number, gpus in enumerate(nodes)}) == backend


@pytest.mark.parametrize("driver", ["[N/A]", "", "[Unknown Error]"])
def test_backend_of_refuses_an_unknown_driver_version(driver: str) -> None:
    nodes = {"node-0": [gpu("NVIDIA A10", "580.65.06")], "node-1": [gpu("NVIDIA A10", driver)]}
    with pytest.raises(PreflightFailed) as caught:
        backend_of(nodes)
    assert str(caught.value).startswith("node-1: the version of its GPU driver is not known")
    assert f"nvidia-smi shows {driver!r} for its NVIDIA A10" in str(caught.value)
    assert str(caught.value).endswith("--python PATH")


def test_findings_report_cpu_torch_on_gpu_nodes() -> None:
    old, new = gpu("Tesla K80", "390.1"), gpu("NVIDIA A10", "580.65.06")
    existing = {
        "old": facts(gpus=(old,), torch="2.13.0+cpu"),
        "new": facts(gpus=(new,), torch="2.13.0+cpu"),
        "cuda": facts(gpus=(new,), torch="2.13.0+cu130"),
        "none": facts(gpus=(), torch="2.13.0+cpu"),
    }
    result = compared.findings(existing)
    assert [(item.node, item.fatal, item.harmless) for item in result] == [
        ("old", False, False),
        ("new", False, False),
    ]
    assert {item.problem for item in result} == {
        "torch 2.13.0+cpu is built without CUDA and does not use the GPUs there"
    }
    assert result[0].fix.startswith(
        "the GPU driver 390.1 is older than all that CUDA builds support: install 450.80.02"
    )
    assert result[1].fix.startswith("ask for a build with CUDA")


def test_findings_report_environments_with_other_packages() -> None:
    def holding(*packages: str) -> Facts:
        return facts(packages=packages)

    alike = ("einops==0.8", "numpy==2.2.6", "nvidia_nccl_cu12==2.27.5", "torch==2.13.0")
    existing = {
        "python": facts(packages=None),
        "a": holding(*alike),
        "b": holding(*alike),
        "c": holding("numpy==2.3.1", "nvidia_nccl_cu12==2.28.3", "torch==2.12.0", "rich==14.0"),
    }
    (result,) = compared.findings(existing)
    assert (result.node, result.fatal) == ("c", False)
    assert result.problem == (
        "its environment is not the one of a: no einops, numpy 2.3.1 (2.2.6 there) and rich 14.0 (not there)"
    )


def test_settings_of_a_backend_are_uv_options() -> None:
    assert settings(None) == ([], {})
    assert settings("cpu") == (["--torch-backend", "cpu"], {})
    assert settings("driver 525.60.13") == (
        ["--torch-backend", "auto"], {"UV_CUDA_DRIVER_VERSION": "525.60.13"},
    )  # fmt: skip


VENV = ["venv", "--no-project", "--python", ">=3.10", "--python-preference", "system", "../venv"]
INSTALL = ["pip", "install", "--python", "../venv"]
EXPORT = ["export", "--frozen", "--no-dev", "--no-emit-workspace", "--no-hashes"]
LOCK = (("uv.lock", ""), ("pyproject.toml", PROJECT))
WHEELS = (("a.whl", "1"),)
SMALL = (("small-1-py3-none-any.whl", "1"),)


@pytest.mark.parametrize(
    ("wish", "commands"),
    [
        (of("torch"), [VENV, [*INSTALL, "--torch-backend", "cpu", "-r", "requirements.txt"]]),
        (of("torch==2.6.0+cu124"), [VENV, [*INSTALL, "-r", "requirements.txt"]]),
        (of("-f https://download.pytorch.org/whl\ntorch"), [VENV, [*INSTALL, "-r", "requirements.txt"]]),
        (
            of("torch", wheels=WHEELS),
            [VENV, [*INSTALL, "--no-index", "--find-links", "../wheels", "-r", "requirements.txt"]],
        ),
        (
            of("", kind="lock", files=LOCK),
            [VENV, ["sync", "--frozen", "--no-dev", "--no-install-project", "--no-install-workspace"]],
        ),
        (
            of("", kind="lock", files=LOCK, wheels=WHEELS),
            [
                VENV,
                [*EXPORT, "--quiet", "-o", "locked.txt"],
                [*INSTALL, "--no-index", "--find-links", "../wheels", "-r", "locked.txt"],
            ],
        ),
    ],
)  # fmt: skip
def test_building_commands_are_exact(wish: Requirements, commands: list[list[str]]) -> None:
    assert building.commands(wish, "cpu") == commands


def test_building_request_constrains_a_later_node_to_the_same_packages() -> None:
    request = building.request(of("torch"), "driver 580.65.06", ["torch==2.13.0+cu130", "x @ file:///x"])
    assert request["files"] == {"requirements.txt": "torch", "constraints.txt": "torch==2.13.0+cu130\n"}
    assert request["commands"][1] == [
        *INSTALL, "--torch-backend", "auto", "--constraint", "constraints.txt", "-r", "requirements.txt",
    ]  # fmt: skip
    assert request["env"]["UV_CUDA_DRIVER_VERSION"] == "580.65.06"
    assert request["instead"] == [*INSTALL, "--constraint", "constraints.txt", "-r", "requirements.txt"]
    assert building.request(of("torch==2.6.0+cu124"), "cpu")["instead"] is None
    polls = [{"ready": None}, {"ready": {"packages": ["torch==2.13.0"]}}]
    assert building.packages_of(polls) == ("torch==2.13.0",)


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        (
            ["error: Failed to fetch: https://me:x@example.org/y"],
            "does not get to example.org. Give it a way out",
        ),
        (["error: No interpreter found for Python >=3.10"], "--python PATH"),
        (["  No solution found when resolving dependencies:"], "Mend requirements.txt"),
    ],
)
def test_building_failure_says_what_to_do(message: list[str], fix: str) -> None:
    text = str(building.failure("node-1", of("nope"), "uv pip install", message))
    assert text.startswith(
        "node-1: the environment for requirements.txt could not be built (uv pip install):\n"
    )
    assert message[0].strip() in text
    assert fix in text


def test_missing_conda_is_wrong_input_and_not_a_failed_build() -> None:
    missing = building.failure("n", of("x"), building.NO_CONDA, ["none of micromamba … is on this node"])
    failed = building.failure("n", of("x"), "uv pip install", ["No solution found"])
    assert (missing.exit_status, failed.exit_status) == (2, 1)
    assert str(missing).endswith("none of micromamba … is on this node")


def test_building_failure_recognizes_a_full_disk() -> None:
    error = building.failure("n", of("x"), "uv pip install", ["No space left on device (os error 28)"])
    assert isinstance(error, DiskFull)


def test_record_digest_identifies_a_wheel_by_content(tmp_path: Path) -> None:
    wheel(tmp_path / "a.whl", "one")
    wheel(tmp_path / "b.whl", "one")
    wheel(tmp_path / "c.whl", "two")
    item, same, other = (build.record_digest(tmp_path / f"{name}.whl") for name in "abc")
    assert item == same != other


@pytest.mark.parametrize(
    ("packages", "backend", "means"),
    [
        (("nvidia_cublas==13",), "cpu", "for CUDA, which runs on CPUs, too"),
        (("nvidia_cublas==13",), "driver 525.60.13", "whose CUDA may be too new for the GPU driver there"),
        ((), "driver 580.65.06", "which does not use GPUs"),
    ],
)
def test_build_of_torch_from_another_index_is_told_with_what_it_means(
    packages: tuple[str, ...], backend: str, means: str
) -> None:
    document = {
        "key": "k",
        "python": "/p",
        "torch": "2.13.0",
        "packages": list(packages),
        "torch_index": "index.corp",
    }
    made = building.parse("n", {**document, "seconds": 1, "bytes": 1}, built=True)
    assert building.which_build("n", made, backend) == (
        "n: download.pytorch.org is not reached from there, so torch 2.13.0 came from index.corp: its default build, "
        f"{means}."
    )


@pytest.mark.parametrize(
    ("message", "lacks"),
    [
        (
            "Because gone was not found in the provided package locations and you require gone==1.2,",
            "gone==1.2",
        ),
        ("Because only small==0.5 is available and all versions of tiny depend on small>=1, we", "small>=1"),
        ("Because only a-b[x]<2 is available and you require a-b[x]>=2, we can conclude", "a-b[x]>=2"),
        ("Because plat==1.0 has no wheels with a matching Python implementation tag (e.g., `cp311`)", "plat"),
        ("Because there is no version of tool==9 and you require tool==9, we can", "tool==9"),
        ("error: No interpreter found", None),
    ],
)
def test_missing_wheel_is_read_from_uvs_words(message: str, lacks: str | None) -> None:
    result = build.what_lacks(message)
    assert (result and result[1]) == lacks


def test_missing_wheels_are_named_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    lacks = {"missing": ["einops>=0.8", "rich"], "python": "3.12.3", "platforms": ["manylinux2014_x86_64"]}
    wish = of("rich", wheels=WHEELS, wheels_folder=Path("/w"))
    report = building.what_lacks(wish, lacks)
    assert report == (
        "Missing in /w: einops>=0.8 and rich. Where there is internet access, this fetches them:\n"
        "    pip download -d /w --find-links /w --only-binary :all: --python-version 3.12.3 --platform "
        "manylinux2014_x86_64 'einops>=0.8' rich"
    )
    assert "--no-deps" in building.what_lacks(of("", kind="lock", wheels_folder=Path("/w")), lacks)
    assert building.what_lacks(wish, {"missing": []}) == ""
    failed = str(building.failure("n", wish, "uv pip install", ["No solution found"], report))
    assert (
        failed == f"n: the environment for requirements.txt could not be built (uv pip install):\n  {report}"
    )
    without_uv = of("Small==1\nrich", always=("torch",), wheels=SMALL, wheels_folder=Path("/w"))
    report = building.what_lacks(without_uv, {"missing": ["uv==0.13.9"], "platforms": []})
    assert report.startswith("Missing in /w: uv==0.13.9, rich and torch. ")
    marked = of('rich\npywin32; sys_platform == "win32"', wheels=SMALL, wheels_folder=Path("/w"))
    report = building.what_lacks(marked, {"missing": ["uv==0.13.9"], "platforms": []})
    assert report.startswith("Missing in /w: uv==0.13.9 and rich. ")


def test_requirements_are_named_whole_without_their_options_and_logins() -> None:
    text = (
        "torch==2.1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n    # via mine\nfoo==1 --hash=sha256:cc\n"
        "# a comment that ends with \\\n--index-url \\\n  https://me:secret@example.org/simple\n"
        'mine @ git+https://me:secret@example.org/mine.git@v1\nbar==2 ; python_version < "3.9"  # old\n'
    )
    assert of(text, always=("uv-like",)).named == [
        "torch==2.1.0",
        "foo==1",
        "mine @ git+https://example.org/mine.git@v1",
        'bar==2 ; python_version < "3.9"',
        "uv-like",
    ]


def test_refused_line_does_not_show_its_login(tmp_path: Path) -> None:
    write(tmp_path, requirements_txt="x @ file://me:secret@example.org/mine\n")
    with pytest.raises(BadRequirements, match=r"`x @ file://example\.org/mine`"):
        requirements_of(tmp_path)


CONDA = """\
name: mine
prefix: /home/me/envs/mine
channels: [conda-forge]
dependencies:
  - pytorch>=2.6
  - pip:
      - einops
"""


def test_conda_file_is_taken_last_and_without_what_is_of_this_computer(tmp_path: Path) -> None:
    write(tmp_path, environment_yml=CONDA)
    result = requirements_of(tmp_path, always=["torch"])
    assert (result.source, result.kind, result.always, result.names_its_build) == (
        "environment.yml",
        "conda",
        (),
        True,
    )
    assert result.files == (
        ("environment.yml", "channels:\n- conda-forge\ndependencies:\n- pytorch>=2.6\n- pip:\n  - einops\n"),
    )
    request = building.request(result, None)
    assert (request["conda"], request["commands"], request["instead"]) == ("environment.yml", [], None)
    renamed = requirements_of(write(tmp_path, environment_yml=CONDA.replace("mine", "other")))
    assert renamed is not None
    assert key_of(renamed, None) == key_of(result, None)
    write(tmp_path, requirements_txt="torch\n")
    listed = requirements_of(tmp_path)
    assert (listed and listed.kind) == "requirements"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a: [", {}, r"it is no YAML \(line 2\)|it is no YAML \(line 1\)"),
        ("name: x\n", {}, "lists no `dependencies`"),
        (CONDA + "      - -e .\n", {}, "environment.yml, pip packages: `-e .` is a folder on this computer"),
        (CONDA, {"pip": ["rich"]}, "leave out --pip, or list rich under `pip:` in it"),
        (CONDA, {"wheels": Path()}, "says where each file comes from, and --wheels says otherwise"),
    ],
)
def test_conda_file_that_the_nodes_cannot_take_is_refused(
    tmp_path: Path, text: str, options: Any, message: str
) -> None:
    (tmp_path / "environment.yml").write_text(text)
    with pytest.raises(BadRequirements, match=message):
        requirements_of(tmp_path, requirements=tmp_path / "environment.yml", **options)
