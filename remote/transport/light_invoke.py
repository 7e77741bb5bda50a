"""Import Invoke, as paramiko and Fabric do, without `unittest.mock` and asyncio, which take 25 ms.

Invoke needs them for `MockContext` alone, which helps to test tasks. That imports them when it is used. The time is
saved where `ssh.py` is the first to import Invoke.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_MOCK = "unittest.mock"
_STUB = ModuleType(_MOCK)


def _of_mock(name: str) -> Any:  # noqa: ANN401 - whatever the module has
    """Return an attribute of the module itself, which takes the stub's place: another thread may import it, too."""
    if name.startswith("__"):
        raise AttributeError(name)  # the import system asks for some
    if sys.modules.get(_MOCK) is _STUB:
        del sys.modules[_MOCK]
    return getattr(import_module(_MOCK), name)


def _mock(**options: Any) -> Any:  # noqa: ANN401 - those of Mock
    """Make a Mock, as `MockContext` does."""
    return _of_mock("Mock")(**options)


if _MOCK not in sys.modules:
    vars(_STUB).update(Mock=_mock, __getattr__=_of_mock)
    sys.modules[_MOCK] = _STUB
    try:
        import_module("invoke")
    finally:
        if sys.modules.get(_MOCK) is _STUB:
            del sys.modules[_MOCK]
