"""What paramiko's errors mean where only their words tell: the one place that reads these."""


def no_pinned_key(error: Exception) -> bool:
    """Whether the server's host key is in no file that was given."""
    return "not found in known_hosts" in str(error)


def channel_timed_out(error: Exception) -> bool:
    """Whether the server did not say in time that a channel is open."""
    return "Timeout" in str(error)


def hung_up(error: Exception) -> bool:
    """Whether the server closed the connection before its banner: the end of the stream is the error's cause."""
    return "banner" in str(error) and isinstance(error.__context__, (EOFError, ConnectionError))
