"""Open connections to nodes, and what is asked of the node's part over them."""
