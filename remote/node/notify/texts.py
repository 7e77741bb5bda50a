"""Durations and times as people say them."""

from datetime import datetime, timezone


def span(seconds: float) -> str:
    """Return a duration as people say it: `45 s`, `12 min`, `2 h 13 min`, `3 d 4 h`."""
    whole = round(seconds)
    if whole < 120:
        return "{} s".format(whole)
    minutes = round(seconds / 60)
    if minutes < 120:
        return "{} min".format(minutes)
    hours, minutes = divmod(minutes, 60)
    return "{} h {} min".format(hours, minutes) if hours < 48 else "{} d {} h".format(*divmod(hours, 24))


def clock(at: float) -> str:
    """Return a time as `14:05 UTC`."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%H:%M UTC")
