"""The commands, one module each: `gpuctl ssh-config` is `ssh_config.command`. Listed in `gpuctl.root_help`."""
