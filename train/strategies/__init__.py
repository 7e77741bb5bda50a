"""How a model is distributed over the ranks: `strategy.py` says what each strategy does, one module is for each."""
