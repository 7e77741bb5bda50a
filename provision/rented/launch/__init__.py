"""The launch of machines: in the first zone that has all of them, whatever crashed before."""
