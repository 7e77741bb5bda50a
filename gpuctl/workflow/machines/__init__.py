"""The machines themselves: exec, ssh, push, pull, fab, top, Ray."""
