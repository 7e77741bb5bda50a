"""Why a run makes no progress: stacks read, ranks compared, the sentence that says who waits for whom. Pure."""
