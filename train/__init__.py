"""The built-in training job. It runs on the nodes and needs nothing else of ours: see `train/__main__.py`."""
