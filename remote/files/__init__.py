"""Files on nodes: code sync, `pull`, checkpoints, files that runs leave."""
