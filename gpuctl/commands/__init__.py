"""The commands, one module each, named as the command: `ssh-config` is `ssh_config.command`."""
