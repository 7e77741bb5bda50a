"""The part of gpuctl that runs on a node: Python's standard library alone, Python 3.8 or newer.

It is sent over the first connection into `~/.gpuctl-node/bin/<digest>/` and run from there as
`python3 -I <folder> COMMAND`, so that neither a user's modules nor the node's own packages can stand in
its way. Commands read a JSON document from standard input and answer with frames (`remote.shared.frames`).
"""
