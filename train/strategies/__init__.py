"""How a model is distributed over the ranks, one module for each strategy."""
