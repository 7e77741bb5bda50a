"""Ray on a node: its daemons, a run's ranks, a search's trials."""
