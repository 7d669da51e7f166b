"""The commands of regions: ``lowwater region``, ``global`` and ``references``."""
