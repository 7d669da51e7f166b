"""Builds Grafana's JSON from the values of ``panels.py``, with Grafana's own builders."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from monitoring.panels import Board, Choice, Event, Kind, Panel, Query
from monitoring.settings import Settings

COLUMNS: Final = 24
DATASOURCE: Final = shapes.DataSourceRef("prometheus", "${datasource}")
ALL: Final = models.VariableOption(selected=True, text=["All"], value=["$__all"])
TAG: Final = "lowwater"
STEP: Final = "60s"
"""Time between two looks for an event, and shortest time that an event is shown."""
PAGE_OF_ONE: Final = "${page}/#/c/${__field.labels.computation:percentencode}"
PAGE_OF_ROW: Final = "${page}/#/c/${__data.fields.computation:percentencode}"

AnyPanel = timeseries.Panel | stat.Panel | table.Panel | statetimeline.Panel


def render(board: Board, boards: Iterable[Board], settings: Settings) -> str:
    """Write a dashboard that links to the others, as JSON that is the same each time."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags([TAG])
        .timezone("utc")
        .time("now-6h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .editable()
        .variables(_variables(board, settings))
        .links(
            [
                # A link keeps the chosen variables, unless only one of the two dashboards is about
                # several scrape jobs.
                *(
                    _to_board(other).include_vars(other.several_jobs == board.several_jobs)
                    for other in boards
                    if other.uid != board.uid
                ),
                _link("Status page", "${page}/").target_blank(True).icon("external link"),
            ]
        )
    )
    y = 0
    for row in board.rows:
        built.with_row(dashboard.Row(row.title).id(_row_identity(row.title)).grid_pos(_place(0, y, COLUMNS, 1)))
        y += 1
        x = height = 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            built.with_panel(_panel(panel).grid_pos(_place(x, y, panel.width, panel.height)))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    content = json.loads(JSONEncoder().encode(built.build()))
    for link in content["links"]:
        del link["placement"]  # the builders hide every link in a menu
    # The builders cannot give an annotation its Prometheus expression and its texts, so that the
    # annotations are added as JSON.
    content["annotations"] = {"list": list(map(_event, board.events))}
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _event(event: Event) -> dict[str, object]:
    """Build an annotation. Grafana 11 reads its outer fields, Grafana 12 those of ``target``."""
    return {
        "name": event.name,
        "datasource": {"type": DATASOURCE.type_val, "uid": DATASOURCE.uid},
        "enable": True,
        "iconColor": event.colour,
        "expr": event.expr,
        "step": STEP,
        "titleFormat": event.title,
        "textFormat": event.text,
        "target": {"refId": "Anno", "expr": event.expr, "interval": STEP},
    }


def _row_identity(title: str) -> int:
    """Return the number of a row, which differs from that of a panel with the same title."""
    return Panel(f"row {title}", "", ()).identity


def _place(x: int, y: int, width: int, height: int) -> models.GridPos:
    return models.GridPos(h=height, w=width, x=x, y=y)


def _panel(panel: Panel) -> AnyPanel:
    """Build a panel, without its place."""
    if panel.kind is Kind.STAT:
        built: AnyPanel = stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    elif panel.kind is Kind.TABLE:
        built = _table(panel)
    elif panel.kind is Kind.STATES:
        built = statetimeline.Panel().mappings([_states(panel.states)]).show_value(shapes.VisibilityMode.NEVER)
    else:
        built = _lines(panel)
    built.id(panel.identity).title(panel.title).description(panel.says).unit(panel.unit.value).datasource(DATASOURCE)
    built.thresholds(_thresholds(panel.colours))
    if panel.to_page:
        built.data_links(
            [_link("Status page", PAGE_OF_ROW if panel.kind is Kind.TABLE else PAGE_OF_ONE).target_blank(True)]
        )
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        built.with_target(_target(letter, query, instant=panel.kind is Kind.TABLE))
    return built


def _lines(panel: Panel) -> timeseries.Panel:
    """Return a panel of lines with their last and greatest values, or of stacked areas."""
    stacked = panel.kind is Kind.STACK
    built = (
        timeseries.Panel()
        .fill_opacity(25 if stacked else 0)
        .show_points(shapes.VisibilityMode.NEVER)
        .tooltip(common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI).sort(shapes.SortOrder.DESCENDING))
        .legend(
            common.VizLegendOptions()
            .display_mode(shapes.LegendDisplayMode.TABLE)
            .placement(shapes.LegendPlacement.RIGHT)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
    )
    if stacked:
        built.stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL))
    if panel.colours:
        built.thresholds_style(common.GraphThresholdsStyleConfig().mode(shapes.GraphThresholdsStyleMode.DASHED))
    for query in panel.queries:
        if query.limit:
            built.override_by_name(
                query.legend,
                [
                    models.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 8]}),
                    models.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": "red"}),
                ],
            )
    return built


def _table(panel: Panel) -> table.Panel:
    """One row for each series, one column for each label and for each query's value."""
    hidden = dict.fromkeys(("Time", "__name__", "job"), True)
    names = {f"Value #{letter}": query.legend for letter, query in zip("ABCDEFGH", panel.queries, strict=False)}
    if len(panel.queries) == 1:
        names["Value"] = panel.queries[0].legend
    return table.Panel().transformations(
        [
            models.DataTransformerConfig(id_val="merge", options={}),
            models.DataTransformerConfig(id_val="organize", options={"excludeByName": hidden, "renameByName": names}),
        ]
    )


def _target(letter: str, query: Query, *, instant: bool) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(letter).datasource(DATASOURCE).expr(query.expr)
    if instant:
        return target.instant().format(PromQueryFormat.TABLE)
    return target.range().format(PromQueryFormat.TIME_SERIES).legend_format(query.legend)


def _states(words: tuple[str, ...]) -> models.ValueMap:
    colours = ("#8e8e8e", "blue", "green")
    return models.ValueMap(
        {
            str(value): models.ValueMappingResult(text=word, color=colours[value % len(colours)], index=value)
            for value, word in enumerate(words)
        }
    )


def _thresholds(colours: tuple[tuple[float, str], ...]) -> dashboard.ThresholdsConfig:
    steps = [models.Threshold(value=None, color="green"), *(models.Threshold(*step) for step in colours)]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _variables(board: Board, settings: Settings) -> list[Builder[models.VariableModel]]:
    """Build the variables of a dashboard: data source, job, own choices, and status page."""
    job = (
        dashboard.QueryVariable("job")
        .label("Job")
        .datasource(DATASOURCE)
        .query(_values(board.jobs))
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    if board.several_jobs:
        job.multi(True).include_all(True).all_value(".+").current(ALL)
    page = models.VariableOption(selected=True, text=settings.page, value=settings.page)
    return [
        dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"),
        job,
        *map(_choice, board.choices),
        dashboard.TextBoxVariable("page").label("Status page").default_value(settings.page).current(page),
    ]


def _choice(choice: Choice) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(choice.name)
        .label(choice.about)
        .datasource(DATASOURCE)
        .query(_values(choice.query))
        .regex(choice.regex)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(choice.all_value)
        .current(ALL)
    )


def _values(query: str) -> dict[str, object]:
    return {"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"}


def _to_board(board: Board) -> dashboard.DashboardLink:
    return _link(board.title, f"/d/{board.uid}").keep_time(True).icon("dashboard")


def _link(title: str, url: str) -> dashboard.DashboardLink:
    return dashboard.DashboardLink(title).type(models.DashboardLinkType.LINK).url(url)
