"""Alerts about regions, from metrics of `lowwater global` about references and their agents."""

from __future__ import annotations

from monitoring.rules import Alert, Group


def alerts() -> Group:
    """Return the alerts for operators of several regions."""
    return Group(
        "lowwater-regions",
        "regions.md",
        (
            Alert(
                "LowwaterGlobalDown",
                # Each target that was a global authority in the last six hours, so that the alert
                # needs no name of a scrape job.
                "up == 0\nand on (job, instance) max_over_time(lowwater_global_build_info[6h])",
                "5m",
                "critical",
                "The global authority {{ $labels.instance }} does not answer",
                "Regions go on by the numbers that they have. What is published for all stands still, nothing can be adopted, and a region"
                " that is started again commits nothing.",
            ),
            Alert(
                "LowwaterGlobalNotServing",
                "max by (job, instance) (lowwater_global_serving) == 0",
                "1m",
                "critical",
                "The store of the global authority {{ $labels.instance }} has to be recovered",
                "It is older than what a region has seen, so nobody is answered until an operator has the regions enrol.",
            ),
            Alert(
                "LowwaterRegionSuspect",
                "max by (job, region) (lowwater_region_suspect) == 1",
                "2m",
                "critical",
                "The region {{ $labels.region }} is silent",
                "Nothing moves by that. What it owns, or keeps a replica of, is not published any further until it is heard of, or somebody decides"
                " that another region adopts what it owns.",
            ),
            Alert(
                "LowwaterReferenceHolds",
                "max by (job, reference) (lowwater_reference_holds) > 0",
                "15m",
                "warning",
                "{{ $labels.reference }} waits for a decision",
                "It was adopted from a lost region, and what only that region has holds it: nothing above is published until an operator says"
                " that it arrived, or writes it off.",
            ),
            Alert(
                "LowwaterReferenceDamaged",
                "max by (job, instance) (lowwater_damaged_references) > 0",
                "0s",
                "critical",
                "{{ $value }} references of {{ $labels.instance }} cannot be read",
                "They are answered for nobody; all others go on.",
            ),
        ),
    )
