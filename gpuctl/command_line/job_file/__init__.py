"""A job in a file: `gpuctl.yaml` of a project.

    cluster: ...        what `gpuctl up` reads, as in a spec file
    environment: ...    what the ranks find installed, and their variables
    include, root       what is sent to the nodes
    run: ...            the script with its arguments, and how it is started
    outputs: ...        what comes back

`keys` makes these keys from the options of `gpuctl train`, `read` reads a file, `command` lets it say what was not
typed, `schema` describes it for editors, `propose` writes the first one.
"""
