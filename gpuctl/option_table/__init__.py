"""The options of `train`, `bench`, `tune` and `up`, each declared once (`inventories.option`), and their values.

Commands, library, gpuctl.yaml and the reference pages are made from these tables. They import nothing slow.
"""
