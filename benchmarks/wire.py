"""Report messages as bytes, made from numpy columns.

Building a message of 10,000 values through protobuf's Python API costs about a millisecond, several
times what the authority needs to take it over. Packed columns are the values' own bytes behind a
tag and a length, so they are put together here, and before the clock runs: the figures are the
server's, not the load generator's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowwater.v1 import workers_pb2 as pb

Int64s = npt.NDArray[np.int64]


def report(
    number: int, computation: str, sequencer: int, watermarks: Int64s, handles: npt.NDArray[np.uint32] | None = None
) -> bytes:
    """Return a serialized ReportRequest with one group; without handles it is the whole claim."""
    group = pb.GroupReport(computation=computation, sequencer=sequencer).SerializeToString()
    if handles is not None:
        group += _field(pb.GroupReport.HANDLES_FIELD_NUMBER, handles.astype("<u4").tobytes())
    group += _field(pb.GroupReport.WATERMARKS_MICROS_FIELD_NUMBER, watermarks.astype("<i8").tobytes())
    body = pb.Report(number=number).SerializeToString() + _field(pb.Report.GROUPS_FIELD_NUMBER, group)
    return _field(pb.ReportRequest.REPORT_FIELD_NUMBER, body)


def opening(sender: bytes, stream: int) -> bytes:
    """Return the serialized first message of a report stream."""
    return pb.ReportRequest(open=pb.ReportOpen(sender=sender, stream=stream)).SerializeToString()


def _field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field."""
    size, length = len(content), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + content
