"""Network, firewall and placement of the machines: found by tag, or created."""
