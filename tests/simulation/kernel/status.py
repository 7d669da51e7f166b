"""The ends of calls."""

from __future__ import annotations

from typing import Final, NamedTuple

import grpc


class Status(NamedTuple):
    code: grpc.StatusCode
    details: str = ""
    trailers: tuple[tuple[str, str | bytes], ...] = ()


OK: Final = Status(grpc.StatusCode.OK)
TOO_LATE: Final = Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
CANCELLED: Final = Status(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
STOPPING: Final = Status(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
UNIMPLEMENTED: Final = Status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
