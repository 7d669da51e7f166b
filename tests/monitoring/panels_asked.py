"""The queries that Grafana puts to Prometheus, and those of rules, read from the generated files alone."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

import yaml

from monitoring.files import GENERATED

CHOSEN: Final = {
    "$job": "lowwater",
    "$instance": ".*",
    "$namespace": "(.*/)?",
    "$computation": ".*",
    "$team": ".*",
    "$owner": ".*",
    "$query": ".*",
    "$topic": ".*",
    "$__rate_interval": "15s",
}
"""The values of the dashboards' variables when a reader chooses nothing, on one deployment."""

SELECTOR: Final = re.compile(r"(?<![\w:])((?:computation|instance|lowwater|process|up)[\w:]*)(\{[^}]*\})?(?![\w(])")
"""A metric with or without matchers; functions have a bracket behind them."""


class Asked(NamedTuple):
    board: str
    panel: str
    expr: str


def dashboards() -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted((GENERATED / "dashboards").glob("*.json"))}


def panel_queries(board: str, job: str = "lowwater") -> list[Asked]:
    queries_ = []
    for panel in dashboards()[board]["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"]
            for name, value in (CHOSEN | {"$job": job}).items():
                expr = expr.replace(name, value)
            queries_.append(Asked(board, panel["title"], expr))
    return queries_


def rules(name: str) -> list[dict[str, Any]]:
    content = yaml.safe_load((GENERATED / f"rules/lowwater-{name}.yaml").read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def selectors(expr: str) -> set[str]:
    """Every selector of an expression. Labels that are named in brackets are none."""
    bare = re.sub(r"\b(?:by|on|ignoring|group_left)\s*\([^)]*\)", " ", expr)
    return {metric + matchers for metric, matchers in SELECTOR.findall(bare) if metric != "instance"}
