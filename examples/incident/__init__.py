"""The flights pipeline with one process per worker, so that an incident can be staged in it: one executor is paused."""
