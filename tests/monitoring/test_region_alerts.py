"""Each alert about regions fires at its second, its nearest harmless neighbour does not fire it, and the global authority fires none about authorities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.monitoring.exported import HOURS, Exported, Instances, check, healthy, own, paused, quiet, without

FAULT = 1 * HOURS
AFTER = range(FAULT, 2 * HOURS, 300)
GLOBAL = "global:7431"
ONE = {"job": "lowwater", "instance": GLOBAL}
JOB = {"job": "lowwater"}


def regions() -> Exported:
    """A healthy deployment, and a global authority that is scraped with it and hears of two regions."""
    exported = healthy()
    exported[own("up", "", GLOBAL)] = lambda t: 1
    exported[own("lowwater_global_build_info", ', version="1"', GLOBAL)] = lambda t: 1
    exported[own("process_start_time_seconds", "", GLOBAL)] = lambda t: 0
    exported[own("lowwater_global_serving", "", GLOBAL)] = lambda t: 1
    exported[own("lowwater_damaged_references", "", GLOBAL)] = lambda t: 0
    for region in ("eu", "us"):
        exported[own("lowwater_region_suspect", f', region="{region}"', GLOBAL)] = lambda t: 0
    exported[own("lowwater_reference_holds", ', reference="hourly:clicks", region="eu"', GLOBAL)] = lambda t: 0
    return exported


def changed(name: str, labels: str, value: float, until: float = 20 * HOURS) -> Exported:
    """One of its figures has another value for a time."""
    exported = regions()
    before = exported[own(name, labels, GLOBAL)]
    exported[own(name, labels, GLOBAL)] = lambda t: value if FAULT <= t < until else before(t)
    return exported


def down(until: float = 20 * HOURS) -> Exported:
    """It does not answer."""
    exported = regions()
    paused(exported, FAULT, until, f'instance="{GLOBAL}"')
    exported[own("up", "", GLOBAL)] = lambda t: 0 if FAULT <= t < until else 1
    return exported


HOLDS = ', reference="hourly:clicks", region="eu"'
FIRES: dict[str, tuple[Callable[[], Exported], Mapping[float, Instances]]] = {
    "LowwaterGlobalDown": (down, {3870: [], 3900: [ONE]}),
    "LowwaterGlobalNotServing": (lambda: changed("lowwater_global_serving", "", 0), {3630: [], 3660: [ONE]}),
    "LowwaterRegionSuspect": (
        lambda: changed("lowwater_region_suspect", ', region="eu"', 1),
        {3690: [], 3720: [JOB | {"region": "eu"}]},
    ),
    "LowwaterReferenceHolds": (
        lambda: changed("lowwater_reference_holds", HOLDS, 1),
        {4470: [], 4500: [JOB | {"reference": "hourly:clicks"}]},
    ),
    "LowwaterReferenceDamaged": (lambda: changed("lowwater_damaged_references", "", 1), {3570: [], 3600: [ONE]}),
}


@pytest.mark.parametrize("alert", FIRES)
def test_it_fires_at_its_second(tmp_path: Path, alert: str) -> None:
    made, expected = FIRES[alert]
    check(tmp_path, made(), {alert: expected})


HARMLESS: dict[str, Callable[[], Exported]] = {
    "regions that are heard of": regions,
    "a global authority that was started again": lambda: down(FAULT + 240),
    "a region that was silent for a moment": lambda: changed("lowwater_region_suspect", ', region="eu"', 1, FAULT + 90),
    "an adoption that was decided soon": lambda: changed("lowwater_reference_holds", HOLDS, 1, FAULT + 600),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_the_harmless_neighbour_is_quiet(tmp_path: Path, name: str) -> None:
    """Nor is a global authority, which hears of no shards, taken for an authority that does not."""
    check(tmp_path, HARMLESS[name](), quiet(AFTER))


def test_a_global_authority_alone_is_no_authority(tmp_path: Path) -> None:
    exported = without(regions(), "one:7421")
    check(tmp_path, exported, {"LowwaterAuthorityAbsent": {270: [], 300: [{}]}})
