"""Errors: one class for each reason on the wire, and backoff after those that pass."""

import pickle
import re
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

import lowwater
from lowwater import errors
from lowwater.core import wire
from lowwater.core.attempts import AGAIN, error_of_call
from lowwater.core.raising import own_copy
from lowwater.v1 import errors_pb2

INFO = "type.googleapis.com/google.rpc.ErrorInfo"


def details(reason: str, domain: str = "lowwater", **metadata: str) -> bytes:
    info = errors_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata)
    status = errors_pb2.RpcStatus(code=9, message="what to do")
    status.details.add(type_url=INFO, value=info.SerializeToString())
    return status.SerializeToString()


@pytest.mark.parametrize("reason", errors.BY_REASON)
def test_each_reason_has_its_class(reason: str) -> None:
    error = wire.error_from_details(details(reason, computation="hourly"))
    assert error is not None
    assert type(error).__name__ == reason.title().replace("_", "")
    assert type(error).reason == error.reason == reason
    assert type(error) is getattr(lowwater, type(error).__name__)
    assert (str(error), error.metadata) == ("what to do", {"computation": "hourly"})


def test_a_reason_of_a_newer_server_is_still_an_error_with_its_reason() -> None:
    error = wire.error_from_details(details("SHARD_MOVED"))
    assert type(error) is errors.LowwaterError
    assert error.reason == "SHARD_MOVED"
    assert errors.LowwaterError.reason == "UNKNOWN"


@pytest.mark.parametrize("foreign", [b"", b"\xff\xff", details("CYCLE", domain="other"), b"\x12\x01x"])
def test_what_others_put_into_the_trailer_is_not_ours(foreign: bytes) -> None:
    assert wire.error_from_details(foreign) is None


@pytest.mark.parametrize("cls", errors.BY_REASON.values(), ids=str)
def test_errors_cross_process_borders(cls: type[errors.LowwaterError]) -> None:
    error = pickle.loads(pickle.dumps(cls("message", metadata={"field": "x"})))
    assert (type(error), str(error), error.metadata, error.reason) == (cls, "message", {"field": "x"}, cls.reason)


class Refusing(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        code = grpc.StatusCode[handler_call_details.method.rsplit("/", 1)[1]]

        def refuse(_: bytes, context: grpc.ServicerContext) -> bytes:
            if code is grpc.StatusCode.FAILED_PRECONDITION:
                context.set_trailing_metadata((("grpc-status-details-bin", details("STALE_SEQUENCER", sequencer="7")),))
            context.abort(code, "as asked")
            raise AssertionError

        return grpc.unary_unary_rpc_method_handler(refuse)


@pytest.fixture(scope="module")
def refusing() -> Iterator[grpc.Channel]:
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, handlers=[Refusing()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
        server.stop(0).wait()


@pytest.mark.parametrize(
    ("code", "cls", "reason"),
    [
        ("FAILED_PRECONDITION", errors.StaleSequencer, "STALE_SEQUENCER"),
        ("UNAVAILABLE", errors.Unavailable, "UNAVAILABLE"),
        ("CANCELLED", errors.Unavailable, "UNAVAILABLE"),
        ("DEADLINE_EXCEEDED", errors.Timeout, "TIMEOUT"),
        ("PERMISSION_DENIED", errors.PermissionDenied, "PERMISSION_DENIED"),
        ("UNAUTHENTICATED", errors.Unauthenticated, "UNAUTHENTICATED"),
        ("UNIMPLEMENTED", errors.LowwaterError, "UNIMPLEMENTED"),
        ("UNKNOWN", errors.LowwaterError, "UNKNOWN"),
    ],
)
def test_failed_calls_become_errors(refusing: grpc.Channel, code: str, cls: type[Exception], reason: str) -> None:
    call: Any = refusing.unary_unary(f"/test/{code}")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", timeout=10)
    error = error_of_call(caught.value, "there:7420")
    assert type(error) is cls
    assert error.reason == reason
    if cls is not errors.StaleSequencer:
        assert "there:7420" in str(error)
    assert ("Upgrade lowwater-authority first" in str(error)) == (code == "UNIMPLEMENTED")


def test_the_contract_lists_every_reason_and_which_may_be_repeated() -> None:
    """For whoever writes a client from proto/ alone. Some are only of this client's making: nobody sends them."""
    text = (Path(__file__).parents[2] / "proto/lowwater/v1/errors.proto").read_text()
    later, *others = text.split("  // Elsewhere, or anew:")
    listed = [re.findall(r"^  //   ([A-Z_]+)  ", part, re.MULTILINE) for part in (later, *others)]
    own = {errors.Closed.reason, errors.Timeout.reason, errors.StaleEpoch.reason}
    assert sorted(reason for some in listed for reason in some) == sorted(errors.BY_REASON.keys() - own)
    assert sorted(listed[0]) == sorted(error.reason for error in AGAIN)


def test_callers_who_get_one_error_do_not_lengthen_the_traceback_of_each_other() -> None:
    class TwoArguments(Exception):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(one + two)

    def fail(error: Exception) -> Exception:
        try:
            try:
                raise OSError("why")
            except OSError as cause:
                raise error from cause
        except type(error) as caught:
            return caught

    error = fail(errors.Unavailable("gone", metadata={"computation": "a"}))
    before = error.__traceback__
    own = [fail_again(own_copy(error)) for _ in range(2)]
    assert error.__traceback__ is before
    for caught in own:
        assert caught is not error
        assert isinstance(caught, errors.Unavailable)
        assert caught.metadata == {"computation": "a"}
        assert caught.__cause__ is error.__cause__
        assert [frame.name for frame in traceback.extract_tb(caught.__traceback__)] == ["fail_again", "fail"]
    other = fail(TwoArguments("not", " copied"))
    assert own_copy(other) is other


def fail_again(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught
