"""What both ends of a connection use: names, frames, and functions on files that nodes and this computer both have.

It is sent to the nodes with `remote.node`, so it is Python's standard library alone, Python 3.8 or newer. The client
imports nothing else of what runs there.
"""
