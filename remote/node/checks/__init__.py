"""What a node is asked about itself."""
