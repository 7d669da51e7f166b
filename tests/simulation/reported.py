"""The reports that workers were told to be durable: the next owner of a computation must know them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowwater.v1 import workers_pb2
from lowwater_authority.core.groups import GroupState

if TYPE_CHECKING:
    from lowwater_authority.core.computation import Computation

Key = tuple[str, int]


@dataclass(frozen=True)
class _Report:
    at: tuple[int, int]
    key: Key
    values: dict[int | None, int]


class Reported:
    """The last acknowledged value of each claim and handle, and the values that may have arrived since."""

    def __init__(self) -> None:
        self._streams: dict[int, tuple[bytes, int]] = {}
        self._in_flight: dict[bytes, deque[_Report]] = {}
        self._settled: dict[Key, dict[int | None, int]] = {}
        self._batched: set[Key] = set()

    def sent(self, call: int, message: workers_pb2.ReportRequest) -> None:
        if message.HasField("open"):
            self._streams[call] = message.open.sender, message.open.stream
            return
        sender, stream = self._streams[call]
        for group in message.report.groups:
            values = group.watermarks_micros
            handles: list[int | None] = list(group.handles) or [None]
            if len(values) > 1 and not group.handles:
                handles = list(range(len(values)))
            spread = values if len(values) == len(handles) else list(values) * len(handles)
            report = _Report(
                (stream, message.report.number),
                (group.computation, group.sequencer),
                dict(zip(handles, spread, strict=True)),
            )
            self._in_flight.setdefault(sender, deque()).append(report)

    def commits(self, message: workers_pb2.CommitBatchRequest) -> None:
        self._batched.add((message.computation, message.sequencer))

    def acknowledged(self, call: int, ack: workers_pb2.ReportAck) -> dict[Key, set[int]]:
        """A worker is told that everything up to a report is durable, but for what was refused.

        Returns by claim what it was told that for, as far as nothing newer of the claim is on its way that may have taken its place.
        """
        sender, stream = self._streams[call]
        refused = {(refusal.computation, refusal.sequencer): refusal.reason for refusal in ack.refused}
        waiting = self._in_flight.get(sender, deque())
        answered = list[_Report]()
        while waiting and waiting[0].at <= (stream, ack.number):
            answered.append(waiting.popleft())
        often = Counter(report.key for report in answered)
        for report in answered:
            if report.key in refused:
                # Of what is older nothing is taken over. Else, or where it stands for several, nobody knows of what it was.
                if refused[report.key] != "OLD_STREAM" or often[report.key] > 1:
                    self._settled.pop(report.key, None)
            elif report.at[0] == stream:
                settled = self._settled.setdefault(report.key, {})
                if None in report.values:
                    settled.clear()
                settled.update(report.values)
        # Of what was said on an older stream, and not again on this one, nobody is told anything: a process may have given that claim up.
        durable = {
            report.key: set(report.values.values())
            for report in answered
            if report.key not in refused and report.at[0] == stream
        }
        newer = {report.key for reports in self._in_flight.values() for report in reports}
        newest = stream == max(opened for by, opened in self._streams.values() if by == sender)
        return {key: values for key, values in durable.items() if key not in newer} if newest else {}

    def beyond(self, key: Key, most: Mapping[int, int]) -> list[str]:
        """Return where a claim stands by what was acknowledged, above what its worker has staged by handle and was told to be durable."""
        settled = self._settled.get(key, {})
        differences = []
        for handle, micros in most.items():
            acknowledged = settled.get(handle, settled.get(None))
            if acknowledged is not None and acknowledged > micros:
                differences.append(f"{key} {handle} is to stand at {micros}, but {acknowledged} was acknowledged last")
        return differences

    def missing(self, computation: Computation) -> list[str]:
        differences = []
        for sequencer, group in computation.map.groups.items():
            key = computation.spec.name, sequencer
            settled = self._settled.get(key)
            if settled is None or key in self._batched or group.state is not GroupState.OWNED:
                continue
            later = [report.values for waiting in self._in_flight.values() for report in waiting if report.key == key]
            values = computation.map.columns.values[group.slots()]
            places = group.live_places()
            for place, handle in zip(places.tolist(), group.handles_of(places).tolist(), strict=True):
                possible = [reported[by] for reported in [settled, *later] for by in (handle, None) if by in reported]
                # What was never acknowledged of a range says nothing of where it stood before.
                if not settled.keys().isdisjoint({handle, None}) and int(values[place]) not in possible:
                    differences.append(f"{key} {handle} stands at {values[place]}, but {possible[0]} was acknowledged")
        return differences
