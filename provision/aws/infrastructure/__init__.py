"""What machines need beside themselves: network, firewall, placement; found by tag, or created."""
