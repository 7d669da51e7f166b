"""Dashboards and alerts as code: `python -m monitoring` writes monitoring/generated."""

import warnings

# The builders would rather build the next schema, which Grafana 11 and 12 do not load from files.
warnings.filterwarnings("ignore", "Prefer using dashboardv2", DeprecationWarning)
