"""A task that waits until an interval is complete."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

import lowwater
from lowwater_airflow.hook import LowwaterHook
from lowwater_airflow.trigger import LowWatermarkTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["LowWatermarkSensor"]


class LowWatermarkSensor(BaseSensorOperator):
    """Waits until a computation is complete up to ``until``, by its exact low watermark.

    ``until`` is an aware datetime or its ISO 8601 text, and a template; by default the end of the
    run's data interval. A computation that is reset meanwhile fails the task, because its data are
    computed anew: a retry waits for these. A name that is not registered, and one that is only
    estimated, fails it without a retry. Waiting takes no worker, unless ``deferrable`` is False.
    Where it times out, the log says who holds the computation.
    """

    template_fields: Sequence[str] = ("computation", "until")
    ui_color = "#d7ecf5"

    def __init__(
        self,
        *,
        computation: str,
        until: datetime
        | str = "{{ data_interval_end | ts if data_interval_end is defined and data_interval_end else '' }}",
        lowwater_conn_id: str = LowwaterHook.default_conn_name,
        deferrable: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.computation = computation
        self.until = until
        self.lowwater_conn_id = lowwater_conn_id
        self.deferrable = deferrable

    def poke(self, context: Context) -> bool:
        """Ask once, and log who holds it."""
        until = self._micros()
        with LowwaterHook(self.lowwater_conn_id).get_conn() as lw:
            try:
                completeness = lw.complete(self.computation, until)
            except lowwater.UnknownComputation as error:
                raise AirflowFailException(str(error)) from error
            self._check_exact(completeness.watermark.estimated)
            if not completeness:
                self.log.info("not yet: %s", lw.why(self.computation).sentence)
        return bool(completeness)

    def execute(self, context: Context) -> Any:
        """Ask once; then wait in the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        if not self.poke(context):
            self.defer(
                trigger=LowWatermarkTrigger(self.computation, self._micros().micros, self.lowwater_conn_id),
                method_name="execute_complete",
                timeout=timedelta(seconds=self.timeout),
            )
        return None

    def execute_complete(self, context: Context, event: dict[str, Any]) -> None:
        """Go on after the trigger has fired."""
        if event["status"] != "complete":
            msg = f"{event['reason']}: {event['message']}"
            raise AirflowException(msg)
        self._check_exact(event["estimated"])
        self.log.info("%s is complete to %s: it is at %s", event["computation"], event["until"], event["low"])

    def _micros(self) -> lowwater.Watermark:
        if self.until == "":
            msg = "this run has no data interval: pass until=, the end of what must be complete"
            raise AirflowFailException(msg)
        try:
            until = datetime.fromisoformat(self.until) if isinstance(self.until, str) else self.until
            return lowwater.Watermark.of(until)
        except ValueError as error:
            msg = f"until: {error}"
            raise AirflowFailException(msg) from error

    def _check_exact(self, estimated: bool) -> None:
        if estimated:
            msg = f"{self.computation} is only estimated: rows below its watermark will come; name a computation that is exact"
            raise AirflowFailException(msg)
