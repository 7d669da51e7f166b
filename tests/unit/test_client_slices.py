"""Computations that are cut into slices, as the client sees them: what is asked of which, without a network."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import lowwater
from lowwater import Slice, errors
from lowwater.core import checks
from lowwater.core.claims import Claimant
from lowwater.core.exchange import Attempt, Exchange
from lowwater.core.fold import Reading
from lowwater.core.slices import cut, parts_of, slices_of
from lowwater.core.surroundings import REAL
from lowwater.core.watches import Waiting
from lowwater.core.wire import computation
from lowwater.v1 import topology_pb2, workers_pb2
from lowwater.views import slice_of
from tests.kit.client import OfflineClient
from tests.unit.test_client_routing import Failed, moved

CUT = topology_pb2.Computation(name="hourly", inputs=["flights"], input_version=3, slices=[b"\x40", b"\x80"])
SLICES = [
    topology_pb2.Computation(name=name, slice_of="hourly", slice_start=start, slice_end=end)
    for name, start, end in (("hourly~0", b"", b"\x40"), ("hourly~2", b"\x80", b""), ("hourly~1", b"\x40", b"\x80"))
]
SLICE = topology_pb2.Computation(
    name="hourly~1", inputs=["flights"], input_version=3, slice_of="hourly", slice_start=b"\x40", slice_end=b"\x80"
)


def test_a_name_says_what_it_is_a_slice_of() -> None:
    names = ("hourly~0", "ns/hourly~999", "hourly", "~1", "hourly~", "hourly~1000", "a~1~2")
    assert [slice_of(name) for name in names] == ["hourly", "ns/hourly", *[""] * 5]
    assert slices_of(["hourly~10", "flights", "hourly~2", "hourly", "daily~0"]) == {
        "hourly": ("hourly~2", "hourly~10"),
        "daily": ("daily~0",),
    }
    assert lowwater.WatermarkView("hourly~3").slice_of == "hourly"


def slices_of_hourly() -> tuple[Slice, ...]:
    return cut(computation(CUT), [computation(name) for name in SLICES])


def test_slices_are_listed_with_their_keys_and_what_is_not_cut_is_one() -> None:
    assert slices_of_hourly() == (
        Slice("hourly~0", b"", b"\x40"),
        Slice("hourly~1", b"\x40", b"\x80"),
        Slice("hourly~2", b"\x80", b""),
    )
    assert cut(computation(SLICE), []) == (Slice("hourly~1", b"\x40", b"\x80"),)
    assert cut(computation(topology_pb2.Computation(name="flights")), []) == (Slice("flights", b"", b""),)


@pytest.mark.parametrize(
    ("start", "end", "parts"),
    [
        (b"", b"", [("hourly~0", b"", b"\x40"), ("hourly~1", b"\x40", b"\x80"), ("hourly~2", b"\x80", b"")]),
        (b"\x41", b"\x81", [("hourly~1", b"\x41", b"\x80"), ("hourly~2", b"\x80", b"\x81")]),
        (b"\x40", b"\x80", [("hourly~1", b"\x40", b"\x80")]),
        (b"\x90", b"", [("hourly~2", b"\x90", b"")]),
        (b"", b"\x01", [("hourly~0", b"", b"\x01")]),
    ],
)
def test_an_interval_is_cut_where_slices_begin(start: bytes, end: bytes, parts: list[tuple[str, bytes, bytes]]) -> None:
    assert [tuple(part) for part in parts_of(slices_of_hourly(), start, end)] == parts


def test_a_slice_is_nobodys_to_read() -> None:
    with pytest.raises(lowwater.InvalidArgument, match="the whole, hourly"):
        Waiting("hourly~1", 5, None)
    with lowwater.connect("nobody.invalid:1", timeout=0.1) as lw:
        with pytest.raises(lowwater.InvalidArgument, match="the whole, hourly"):
            lw.inputs("flights", "hourly~1")
        with pytest.raises(lowwater.InvalidArgument, match="the whole, hourly"):
            list(lw.intervals("hourly~1", every=timedelta(hours=1), start=0))
    assert checks.followed_name("names", "hourly~1") == "hourly~1", "who asks why may watch it"


def register(client: OfflineClient) -> tuple[topology_pb2.RegisterRequest, Exchange[Any]]:
    keys, day = [b"\x40", b"\x80"], timedelta(days=1)
    exchange = client.ask(
        client.calls.register("hourly", (), (), "", day, None, estimated=False, lateness_budget=(), slices=keys)
    )
    return exchange.next().request, exchange


def test_an_authority_that_does_not_know_slices_is_told_of() -> None:
    client = OfflineClient()
    request, exchange = register(client)
    assert list(request.slices) == [b"\x40", b"\x80"]
    answer = topology_pb2.RegisterResponse(computation=topology_pb2.Computation(name="hourly"))
    with pytest.raises(lowwater.InvalidArgument, match="no slices, or upgrade") as refused:
        exchange.take(answer)
    assert refused.value.metadata["field"] == "slices"
    answer.computation.slices.extend(request.slices)
    _, again = register(client)
    assert again.take(answer) is None
    assert again.result.slices == (b"\x40", b"\x80")


def other_slice(name: str = "hourly", **metadata: str) -> Failed:
    return Failed("OTHER_SLICE", 0.0, computation=name, **metadata)


def claim(client: OfflineClient) -> tuple[Exchange[Any], Attempt]:
    claimant = Claimant.here(REAL, "hourly", "exec-7", "", 0, 0)
    exchange = client.ask(claimant.claim(client.calls, b"r" * 16, b"\x41", b"\x50", None, None, b"", adopt=False))
    return exchange, exchange.next()


def test_a_claim_goes_on_to_the_slice_that_is_named_with_the_same_request_id() -> None:
    client = OfflineClient()
    exchange, attempt = claim(client)
    assert (attempt.request.computation, attempt.request.request_id) == ("hourly", b"r" * 16)
    assert exchange.failed(other_slice(slice="hourly~1")) == 0.0
    again = exchange.next()
    assert (again.request.computation, again.request.request_id) == ("hourly~1", b"r" * 16)
    assert exchange.failed(moved("hourly~1", "b:1", 4)) == 0.0
    call = exchange.next()
    assert (call.address, call.request.computation) == ("b:1", "hourly~1")
    answer = workers_pb2.ClaimResponse(
        sequencer=9,
        epoch=4,
        incarnation=1,
        inputs=["flights"],
        input_version=3,
        input_incarnations=[1],
        watermarks_micros=[5],
    )
    assert exchange.take(answer) is None
    grant = exchange.result
    assert (grant.state.computation, grant.reading.computation) == ("hourly~1", "hourly"), "it folds the same"
    assert client.router.epoch_of("hourly~1") == 4
    assert client.router.epoch_of("hourly") == 0


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(other_slice(first="hourly~0", last="hourly~2"), id="several slices"),
        pytest.param(other_slice(slice="daily~0"), id="a slice of another one"),
        pytest.param(other_slice(slice="hourly"), id="itself"),
        pytest.param(other_slice(slice_of="hourly"), id="outside of a slice"),
    ],
)
def test_what_names_no_slice_of_the_computation_reaches_the_caller(refusal: Failed) -> None:
    exchange, _ = claim(OfflineClient())
    with pytest.raises(errors.OtherSlice):
        exchange.failed(refusal)


def test_a_claim_goes_back_to_the_whole_when_its_slice_was_cut_in_two_meanwhile() -> None:
    """The retry waits a little: the shard of the whole may not have heard of the cut yet."""
    exchange, _ = claim(OfflineClient())
    calls = []
    for refusal in (
        other_slice(slice="hourly~1"),
        other_slice("hourly~1", slice_of="hourly"),
        other_slice(slice="hourly~3"),
    ):
        calls.append((exchange.failed(refusal) > 0, exchange.next().request.computation))
    assert calls == [(False, "hourly~1"), (True, "hourly"), (False, "hourly~3")]


def test_of_readings_of_several_slices_that_with_the_newer_inputs_counts() -> None:
    older = Reading("hourly", ("flights",), 3, (1,), ())
    newer = [Reading("hourly", ("flights", "weather"), 4, (1, 1), ()), Reading("hourly", ("flights",), 3, (2,), ())]
    assert all(older.is_before(reading) and not reading.is_before(older) for reading in newer)
    assert not older.is_before(older)
    assert not older.is_before(None)
