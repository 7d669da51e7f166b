"""Any well-formed messages in any order: never an internal error, and the state stays whole and recoverable."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import grpc
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.kit.times import HOUR
from tests.property.rpc_messages import call
from tests.property.rpc_server import Pipeline, running

CRASHES = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED}


def send(pipeline: Pipeline, method: str, request: Any) -> grpc.StatusCode:
    """Make a call, and return how it ended."""
    for message in request if method == "Report" else ():
        if message.HasField("open") and not message.open.stream:
            message.open.stream = next(pipeline.streams)
    try:
        pipeline.server.call(method, request)
    except grpc.RpcError as error:
        # Raised failures are calls as well, which the types do not say.
        return cast(grpc.Call, error).code()
    return grpc.StatusCode.OK


def works(pipeline: Pipeline) -> None:
    """Whatever was sent before, a new pipeline runs from end to end."""
    pipeline.register("z/source")
    pipeline.register("z/reader", ["z/source"])
    pipeline.claim("z/source", b"", b"")
    pipeline.claim("z/reader", b"", b"m", b"")
    assert pipeline.say(pipeline.group("z/source", 20)) == []
    assert pipeline.say(pipeline.group("z/reader", 19, 20, input_version=1, input_incarnations=[1])) == []
    assert (pipeline.low("z/source"), pipeline.low("z/reader")) == (20 * HOUR, 19 * HOUR)


@given(seed=st.integers(0, 2**32), length=st.integers(1, 40))
@settings(max_examples=60)
def test_no_sequence_of_well_formed_messages_does_harm(seed: int, length: int) -> None:
    random = Random(seed)
    with running() as pipeline:
        for _ in range(length):
            method, request = call(random, pipeline)
            note(f"{method} {request}"[:2000])
            pipeline.server.now += HOUR // 60
            assert send(pipeline, method, request) not in CRASHES
            pipeline.server.check()
        works(pipeline)
        pipeline.server.check()
