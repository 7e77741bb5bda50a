"""Import Invoke without `unittest.mock`, while others may want that."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

class Importer:
    def find_spec(self, name, path=None, target=None):
        if name == "invoke.runners":
            from unittest import mock
            sys.early = mock

sys.meta_path.insert(0, Importer())
from remote.transport import light_invoke
assert "asyncio" not in sys.modules

import unittest.mock
assert sys.early is not unittest.mock, "it was imported too late to be the stub"
assert sys.early.patch is unittest.mock.patch

from invoke import MockContext
assert isinstance(MockContext(run=True).run, unittest.mock.Mock)
"""
"""Imports the module as another thread may, while Invoke is imported."""


def test_stub_of_mock_has_all_that_the_module_has() -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
