"""The commands, one module each: `gpuctl ssh-config` is `ssh_config.command`. `root_help` lists them."""
