"""Files of checkpoints that are only half written."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from remote.shared.checkpoint_files import files_in, is_torn, torn_in


def torch_file() -> bytes:
    buffer = io.BytesIO()
    torch.save({"step": 1, "w": torch.zeros(500)}, buffer)
    return buffer.getvalue()


def numpy_file() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, w=np.zeros(500))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.pt", torch_file()), ("a.npz", numpy_file()), ("a.safetensors", save({"w": torch.zeros(500)}))],
)
def test_file_is_torn_until_its_last_byte(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    for size in (0, 4, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        assert is_torn(path, size), size
    path.write_bytes(content)
    assert not is_torn(path, len(content))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.pt", b"pickle of old"),
        ("a.json", b""),
        ("latest", b""),
        ("a.safetensors", b"\x02\0\0\0\0\0\0\0{}"),
    ],
)
def test_files_of_other_kinds_are_not_torn(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert not is_torn(tmp_path / name, len(content))
    assert not is_torn(tmp_path / "gone.pt", 3)


def test_files_in_leaves_out_a_torn_file_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "step-3.pt").write_bytes(torch_file())
    (tmp_path / "step-4.pt").write_bytes(torch_file()[:700])
    (tmp_path / "step-3.json").write_text(json.dumps({"step": 3}))
    assert {name for name, _ in files_in(tmp_path, whole=False)} == {"step-3.pt", "step-3.json"}
    assert torn_in(tmp_path) == ["step-4.pt"]
