"""Open connections to nodes, and requests to the nodes' part over them."""
