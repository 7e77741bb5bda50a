"""The library under the command line: what `import gpuctl` gives. It prints nothing and asks nothing by itself."""
