"""Results of commands, which `--json` prints: frozen dataclasses whose attributes are the keys of the document.

A run's result is `inventories.runs.run.Result`, a machine `inventories.machine.MachineInfo`. Unknown values are
`None`.
"""
