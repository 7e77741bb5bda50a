"""Import Invoke, as paramiko and Fabric do, without `unittest.mock` and asyncio, which cost each connection 25 ms.

Invoke needs them for `MockContext` alone, which helps to test tasks. That imports them when it is used.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_MOCK = "unittest.mock"


def _mock(**options: Any) -> Any:  # noqa: ANN401 - those of Mock
    """Make a Mock, as `MockContext` does."""
    return import_module(_MOCK).Mock(**options)


if _MOCK not in sys.modules:
    sys.modules[_MOCK] = ModuleType(_MOCK)
    vars(sys.modules[_MOCK])["Mock"] = _mock
    try:
        import_module("invoke")
    finally:
        del sys.modules[_MOCK]
