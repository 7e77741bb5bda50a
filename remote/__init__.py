"""Inventory → ready nodes → a run: connections, facts, code sync, launchers, detached runs, logs, results.

This package may use paramiko; it knows nothing of cloud SDKs or torch.
"""

import importlib
import sys
from types import ModuleType


class _Later(ModuleType):
    """Stands for a module that is imported when something of it is used."""

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


# paramiko imports it for `Match exec` in the user's SSH configuration alone, with asyncio and unittest.mock:
# 50 ms, a fifth of what a short command takes.
sys.modules.setdefault("invoke", _Later("invoke"))
