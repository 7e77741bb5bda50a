"""A job in a file: `gpuctl.yaml` of a project.

    cluster: ...        the machines, as in a spec file of `gpuctl up`
    environment: ...    packages and variables of the ranks
    include, root       files that are sent to the nodes
    run: ...            the script with its arguments, and the options of its launch
    outputs: ...        files that come back

`keys` makes these keys from the options of `gpuctl train`, `read` reads a file, `command` takes options
from it that were not typed, `schema` describes it for editors, `propose` writes the first one.
"""
