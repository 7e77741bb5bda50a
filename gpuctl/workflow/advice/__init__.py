"""Which machines and which strategy a job should have, before anything is rented."""
