"""The report that follows from facts. Nothing is looked up here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from lowwater.core.text import counted, on_one_line
from lowwater.notebook.markup import fixed, table, titled, words
from lowwater_spark.doctor.facts import UNKNOWN, Checkpoint, Facts, Place, Query

__all__ = ["FIX", "NOTE", "OK", "Finding", "Report", "report"]

OK: Final = "ok"
NOTE: Final = "note"
FIX: Final = "fix"

_TESTED: Final = ((4, 0), (4, 2))
"""Oldest and newest version of Spark whose stages the tests run."""

_APART: Final = 1.0
"""Seconds by which clocks may be apart without a finding to fix."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report."""

    level: str
    """:data:`OK`, :data:`NOTE` (nothing has to be done) or :data:`FIX`."""
    topic: str
    text: str
    paste: str = ""
    """Lines to fill in and paste; empty: none."""


@dataclass(frozen=True, slots=True)
class Report:
    """What :func:`~lowwater_spark.doctor` has found. ``print`` shows it as text."""

    findings: tuple[Finding, ...]

    @property
    def good(self) -> bool:
        """True if no finding is to be fixed."""
        return all(finding.level != FIX for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it: ``good``, and ``findings`` with the fields of each."""
        return {"good": self.good, "findings": [asdict(finding) for finding in self.findings]}

    def __str__(self) -> str:
        wide = max((len(finding.topic) for finding in self.findings), default=0)
        lines = list[str]()
        for finding in self.findings:
            lines.append(f"{finding.level:<4}  {finding.topic:<{wide}}  {on_one_line(finding.text)}")
            if finding.paste:
                lines += [f"      | {line}".rstrip() for line in finding.paste.rstrip("\n").split("\n")]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [
            (f"<b>{finding.level}</b>", fixed(finding.topic), words(finding.text) + _block(finding.paste))
            for finding in self.findings
        ]
        return titled("doctor", "nothing was changed", table(("", "what", "finding"), rows))


def _block(text: str) -> str:
    lines = "\n".join(words(line) for line in text.rstrip("\n").split("\n"))
    return f'<pre style="white-space:pre-wrap;margin:4px 0">{lines}</pre>' if text else ""


def report(facts: Facts) -> Report:
    """Return the report that follows from facts: platform, authority, clocks, queries."""
    parts = (_platform(facts), _executors(facts), _authority(facts), _clocks(facts))
    findings = [finding for part in parts for finding in part]
    for query in facts.queries:
        findings += _query(query)
    if facts.session and not facts.queries:
        findings.append(
            Finding(NOTE, "queries", "none runs in this session; queries of another session are not seen from here")
        )
    for checkpoint in facts.checkpoints:
        findings += [_checkpoint(checkpoint), *_store("checkpoint", checkpoint.store)]
    return Report(tuple(findings))


def _platform(facts: Facts) -> Iterator[Finding]:
    here = facts.here
    yield Finding(OK, "here", f"Python {here.python}, lowwater {here.lowwater}, lowwater-spark {here.listener}")
    yield _versions(facts)
    if not facts.session:
        java = f"Java {facts.java}" if facts.java else "none is found; a sidecar over Kafka, tables or URIs needs it"
        yield Finding(OK if facts.java else NOTE, "java", java)
        yield Finding(NOTE, "session", "none was looked at: pass --remote sc://HOST, or call lws.doctor(spark) in it")
        return
    kinds = {
        "classic": (OK, f"classic, Java {facts.java}"),
        "Connect": (NOTE, "Spark Connect: attach and sidecars; stages and drive need the Python of a classic driver"),
    }
    level, text = kinds.get(facts.session, (NOTE, "neither a classic session nor one of Spark Connect; not tested"))
    yield Finding(level, "session", text)
    if facts.platform:
        text = f"{facts.platform} changes Spark, and none of our tests run there: try each rung before you rely on it"
        yield Finding(NOTE, "platform", text)
    names = ", ".join(f"{name} ({kind.rpartition('.')[2]})" for name, kind in sorted(facts.catalogs.items()))
    yield Finding(OK, "catalogues", names or "Spark's own")


def _versions(facts: Facts) -> Finding:
    if not facts.pyspark:
        return Finding(NOTE, "spark", "PySpark is not installed here; a sidecar over local files and NFS needs none")
    spark = facts.spark or facts.pyspark
    both = f"Spark {facts.spark}, PySpark {facts.pyspark}" if facts.spark else f"PySpark {facts.pyspark}"
    if _minor(spark) != _minor(facts.pyspark):
        return Finding(FIX, "spark", f"{both}: install the PySpark of the server, pyspark=={spark}")
    oldest, newest = _TESTED
    if _minor(spark) < oldest:
        text = (
            f"{both}: too old for attach, stages and drive; a sidecar beside it, with a newer PySpark, tracks Spark 3.5"
        )
        return Finding(FIX, "spark", text)
    if _minor(spark) > newest:
        return Finding(NOTE, "spark", f"{both}: newer than what is tested, {newest[0]}.{newest[1]}")
    return Finding(OK, "spark", both)


def _minor(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version.

    >>> _minor("4.2.0.dev1"), _minor("main")
    ((4, 2), ())
    """
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _executors(facts: Facts) -> Iterator[Finding]:
    if facts.job:
        yield Finding(FIX, "executors", f"the job that looks at them failed: {facts.job}")
    if facts.executors:
        hosts = ", ".join(place.host for place in facts.executors)
        yield Finding(OK, "executors", f"{counted(len(facts.executors), 'host')} answered one small Spark job: {hosts}")
    for place in facts.executors:
        if not (place.lowwater and place.listener):
            lacking = "lowwater" if not place.lowwater else "lowwater-spark"
            text = f"{place.host} has no {lacking}: stages with a function, state and drive need it; attach and sidecars do not"
            yield Finding(NOTE, "executors", text)
        elif {place.lowwater, place.listener} - {facts.here.lowwater, facts.here.listener, UNKNOWN}:
            text = f"{place.host} has lowwater {place.lowwater} and lowwater-spark {place.listener}: install the driver's there"
            yield Finding(FIX, "executors", text)


def _authority(facts: Facts) -> Iterator[Finding]:
    if facts.here.problem:
        yield Finding(FIX, "authority", f"{facts.address} is not reached from here: {facts.here.problem}")
    else:
        yield Finding(OK, "authority", f"{facts.address} answers here")
    for place in facts.executors:
        if place.problem:
            text = f"{facts.address} is not reached from the executor host {place.host}: {place.problem}. Only stages with state need that; they would hold"
            yield Finding(NOTE, "authority", text)
    reaching = [place for place in facts.executors if not place.problem]
    if reaching:
        hosts = counted(len(reaching), "executor host")
        yield Finding(OK, "authority", f"{facts.address} is reached from {hosts}")


def _clocks(facts: Facts) -> Iterator[Finding]:
    seen = list[str]()
    places = [("this machine", facts.here), *((place.host, place) for place in facts.executors)]
    for name, place in places:
        if place.ahead is None:
            continue
        if abs(place.ahead) - place.within > _APART:
            text = f"the clock of {name} is {_offset(place)}: set both by NTP"
            yield Finding(FIX, "clocks", text)
        else:
            seen.append(f"{name} {_offset(place)}")
    if seen:
        yield Finding(OK, "clocks", "; ".join(seen))


def _offset(place: Place) -> str:
    ahead = place.ahead or 0.0
    apart = "ahead of" if ahead >= 0 else "behind"
    return f"{abs(ahead) * 1000:,.1f} ms {apart} the authority, to {place.within * 1000:,.1f} ms"


def _query(query: Query) -> Iterator[Finding]:
    reads = ", ".join(query.sources) or "sources that its first batch will tell"
    parts = [f"reads {reads}"]
    parts += [f"{label} {value}" for label, value in (("writes", query.sink), ("trigger", query.trigger)) if value]
    parts.append(f"checkpoint {query.checkpoint} ({query.store})" if query.checkpoint else "checkpoint not known here")
    topic = on_one_line(f"query {query.name}")
    yield Finding(OK, topic, "; ".join(parts))
    yield from _store(topic, query.store)
    if not query.rungs:
        yield Finding(OK, topic, "a stage tracks it already")
    for rung in query.rungs:
        text = f"{rung.name}: not possible. {rung.refused}" if rung.refused else f"{rung.name}: {rung.gives}"
        yield Finding(NOTE if rung.refused else OK, topic, text, rung.paste)


def _store(topic: str, store: str) -> Iterator[Finding]:
    if store.startswith("fuse"):
        text = f"{store} was not tested: its checkpoints need names that only one writer can take, and files that stay"
        yield Finding(NOTE, topic, text)


def _checkpoint(checkpoint: Checkpoint) -> Finding:
    what = f"{checkpoint.path} ({checkpoint.store})"
    if checkpoint.refused:
        return Finding(FIX, "checkpoint", f"{what}: {checkpoint.refused}")
    text = (
        f"{what}: a sidecar can track it exactly; fill in what is in <> as queries.toml, and run lowwater-spark track"
    )
    return Finding(OK, "checkpoint", text, checkpoint.paste)
