"""Loss curves, from metrics, log lines and files of other tools; pictures of them."""
