"""Many runs that answer one question: bench, bandwidth, tune."""
