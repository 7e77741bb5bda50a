"""The library: the functions and classes that `import gpuctl` offers. It prints nothing and asks no questions."""
