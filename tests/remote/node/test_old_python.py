"""Test requests to a node with Python 3.6 (Oracle Linux 8) before cloud-init has installed a newer Python."""

import ast
from pathlib import Path

import pytest

from remote.node import __main__
from remote.node.checks import ready
from remote.sessions import node_payload
from remote.shared import constants, frames

FILES = [Path(str(module.__file__)) for module in (__main__, constants, frames, ready)]


@pytest.mark.parametrize(
    "text", [node_payload.BOOT, node_payload.ENTRY, *(path.read_text() for path in FILES)]
)
def test_readiness_sources_parse_with_python_3_6(text: str) -> None:
    ast.parse(text, feature_version=(3, 6))
    assert "from __future__ import annotations" not in text
