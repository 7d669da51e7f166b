"""Files that `python -m monitoring` writes, as text by path."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from monitoring import (
    authority_alerts,
    deduplicators,
    grafana,
    internals,
    lag,
    pipeline_alerts,
    promises,
    recordings,
    region_alerts,
    rules,
    workload_alerts,
    workloads,
)
from monitoring.panels import Board
from monitoring.rules import Group
from monitoring.settings import Settings

HERE: Final = Path(__file__).parent
GENERATED: Final = HERE / "generated"
PAGE: Final = HERE.parent / "docs/reference/generated/panels.md"
CHART: Final = HERE.parent / "helm" / "lowwater" / "files"
"""A chart takes nothing from outside of its folder, hence copies."""
LABEL: Final = re.compile(r"{{ \$labels\.(\w+) }}")
VALUE: Final = re.compile(r"{{ \$value[^}]*}}")
MARK: Final = "<!-- {} the part that `python -m monitoring` writes -->"


def boards(settings: Settings) -> tuple[Board, ...]:
    """Return all dashboards."""
    return (lag.board(settings), promises.board(), internals.board(), workloads.board(), deduplicators.board())


def groups(settings: Settings) -> dict[str, tuple[Group, ...]]:
    """Return all groups of rules by the file they go to."""
    return {
        "recording": (recordings.watermarks(settings), recordings.processes()),
        "alerts": (
            pipeline_alerts.alerts(settings),
            authority_alerts.alerts(settings),
            workload_alerts.alerts(),
            deduplicators.alerts(),
            region_alerts.alerts(),
        ),
    }


def generate(settings: Settings) -> dict[str, str]:
    """Return every dashboard and rules file as text, by path below the generated folder."""
    shown = boards(settings)
    files = {f"dashboards/{board.uid}.json": grafana.render(board, shown, settings) for board in shown}
    for name, several in groups(settings).items():
        files[f"rules/lowwater-{name}.yaml"] = rules.render(several, settings.runbooks)
    return files


def page(text: str, settings: Settings) -> str:
    """Put the tables of panels and alerts into the documentation, between its marks."""
    begin, end = MARK.format("begin"), MARK.format("end")
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n\n{_tables(settings)}\n{end}{tail}"


def _tables(settings: Settings) -> str:
    lines: list[str] = []
    for board in boards(settings):
        lines += [f"### {board.title}", "", board.about, ""]
        lines += ["| panel | drawn as | how to read it |", "|---|---|---|"]
        for row in board.rows:
            lines.append(f"| **{row.title}** | | |")
            lines += [f"| {panel.title} | {panel.kind.value} | {_cell(panel.says)} |" for panel in row.panels]
        lines.append("")
    lines += ["### Alerts", "", "| alert | severity | for | when | runbook |", "|---|---|---|---|---|"]
    for group in groups(settings)["alerts"]:
        for alert in group.alerts:
            link = f"[{group.runbook}](../../../monitoring/runbooks/{group.runbook}#{alert.alert.lower()})"
            summary = _cell(VALUE.sub("N", LABEL.sub(r"*\1*", alert.summary)))
            lines.append(f"| `{alert.alert}` | {alert.severity} | {alert.lasting} | {summary} | {link} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
