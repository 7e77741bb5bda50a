"""The command line: the program, its options, help, completion, and gpuctl.yaml."""
