"""Import torchvision with a matching torch, and with another."""

import os
import subprocess
import sys
from pathlib import Path

import PIL
import pytest
import torch

from train.errors import BadEnvironment
from train.torchvision_import import import_torchvision

pytestmark = pytest.mark.slow


def python(script, *, path=None):
    environ = os.environ | ({"PYTHONPATH": os.pathsep.join([str(path), str(Path.cwd())])} if path else {})
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=90, check=False, env=environ
    )
    return done.stdout + done.stderr


@pytest.mark.skipif(
    "+cpu" not in torch.__version__, reason="only beside a CPU-only torch, torchvision's wheel fails"
)
def test_torchvision_is_imported_beside_a_cpu_only_torch():
    alone = python("import torchvision")
    assert "operator torchvision::nms does not exist" in alone
    ours = python(
        "from train.torchvision_import import import_torchvision; vision = import_torchvision()\n"
        "import torchvision.transforms.v2\n"
        "assert vision is torchvision is not None; print(vision.models.resnet18(num_classes=3).fc.out_features)"
    )
    assert ours == "3\n"


def test_missing_torchvision_operators_raise_when_called():
    boxes = torch.zeros(2, 4)
    vision = import_torchvision()
    if vision.extension._has_ops():
        pytest.skip("this torchvision has its own")
    with pytest.raises((NotImplementedError, RuntimeError)):
        vision.ops.nms(boxes, torch.zeros(2), 0.5)


def test_torchvision_called_twice_returns_the_same_module():
    import_torchvision.cache_clear()
    assert import_torchvision() is import_torchvision() is sys.modules["torchvision"]


LOADABLE = next(Path(PIL.__file__).parent.glob("_imagingmorph*.so"), None)
TELL = "import torch; declared = [hasattr(torch.ops.torchvision, name) for name in ('nms', 'qnms')]"
SHOW = "from train.torchvision_import import import_torchvision; print(import_torchvision().declared)"


@pytest.fixture
def copy(tmp_path):
    """Another torchvision, by its `__init__.py` and its compiled library."""

    def made(content, library=None):
        folder = tmp_path / "torchvision"
        folder.mkdir()
        (folder / "__init__.py").write_text(content)
        if library is not None:
            (folder / "_C.so").write_bytes(library)
        return tmp_path

    return made


@pytest.mark.skipif(LOADABLE is None, reason="there is no shared library to take as torchvision's")
def test_loadable_torchvision_library_gets_no_declared_operators(copy):
    assert python(SHOW, path=copy(TELL, LOADABLE.read_bytes())) == "[False, False]\n"


@pytest.mark.parametrize("library", [None, b"built for another machine"])
def test_unloadable_torchvision_library_gets_declared_operators(copy, library):
    assert python(SHOW, path=copy(TELL, library)) == "[True, True]\n"


def test_operators_declared_already_are_not_redeclared(copy):
    script = (
        "import torch; library = torch.library.Library('torchvision', 'FRAGMENT')\n"
        "library.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
    )
    assert python(script + SHOW, path=copy(TELL)) == "[True, True]\n"


def test_torchvision_that_does_not_fit_names_the_fix(copy):
    script = (
        "from train.errors import BadEnvironment; from train.torchvision_import import import_torchvision\n"
        "try: import_torchvision()\nexcept BadEnvironment as error: print(error)"
    )
    assert python(
        script, path=copy("raise RuntimeError('operator torchvision::new does not exist\\nmore')")
    ) == (
        f"torchvision can't be imported beside torch {torch.__version__} (operator torchvision::new does not exist). "
        "Install the version that belongs to it: python -m pip install --upgrade torch torchvision\n"
    )


def test_missing_torchvision_names_the_package(monkeypatch):
    import_torchvision.cache_clear()
    monkeypatch.setitem(sys.modules, "torchvision", None)  # Python's way to mark a module as missing
    with pytest.raises(BadEnvironment, match="pip install torchvision"):
        import_torchvision()
