"""A clock for tests that advances only when somebody sleeps."""


class StepClock:
    """Starts at 0."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        """Seconds since the start."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Let time pass at once."""
        assert seconds >= 0
        self.time += seconds
