"""How well a job scales: what was measured, what another layout would bring."""
