"""Low watermarks in OpenLineage: a run facet that says how far what was read was complete."""

from lowwater_openlineage.facet import NAME, LowWatermarkRunFacet, facet_of

__all__ = ["NAME", "LowWatermarkRunFacet", "facet_of"]
