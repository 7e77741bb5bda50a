"""Network, firewall and placement group of the machines: found by tag, or created."""
