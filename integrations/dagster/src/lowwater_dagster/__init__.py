"""Low watermarks in Dagster: a run for each interval of event time that is complete."""

from lowwater_dagster.sensor import LowwaterResource, interval_sensor

__all__ = ["LowwaterResource", "interval_sensor"]
