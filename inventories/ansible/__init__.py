"""Inventories as YAML files that Ansible reads as they are."""
