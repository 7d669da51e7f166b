"""Dashboards and alerts as code: `python -m monitoring` writes monitoring/generated."""

import warnings

# The builders warn that their next schema, dashboardv2, is preferred. Grafana 11 and 12 do not load
# that schema from files.
warnings.filterwarnings("ignore", "Prefer using dashboardv2", DeprecationWarning)
