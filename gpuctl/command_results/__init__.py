"""Results of commands, which `--json` prints: frozen dataclasses whose attributes are the keys of the document.

A run's result is `inventories.runs.result.Result`, a machine `inventories.machine.MachineInfo`. Unknown values are
`None`.
"""

from dataclasses import fields
from typing import Any


def same_fields(document: type, source: object) -> dict[str, Any]:
    """Return the fields of a document that an object has under the same names.

    UpPlan(**same_fields(UpPlan, plan) | {"cluster": plan.spec.cluster, …})
    """
    names = [field.name for field in fields(document)]
    return {name: getattr(source, name) for name in names if hasattr(source, name)}
