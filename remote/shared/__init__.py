"""Names, frames and functions that this computer and the nodes share.

It is sent to the nodes with `remote.node`, so it is Python's standard library alone, Python 3.8 or newer. The client
imports nothing else of what runs there.
"""
