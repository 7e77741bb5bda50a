"""The options of `train`, `bench`, `tune`, `up` and `advise`, each declared once (`inventories.option`).

Commands, library, gpuctl.yaml and the reference pages are made from these tables. Only the table of `advise` imports
catalogs.
"""
