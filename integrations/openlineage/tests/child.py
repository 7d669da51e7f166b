"""Program in OpenLineage's environment: writes an event with each facet into a file."""

import sys
from datetime import UTC, datetime

from lowwater_openlineage import NAME, facet_of
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.uuid import generate_new_uuid

import lowwater


def main() -> None:
    """ADDRESS FILE, and questions: a computation, and perhaps two hours."""
    address, path, *questions = sys.argv[1:]
    client = OpenLineageClient(transport=FileTransport(FileConfig(log_file_path=path, append=True)))
    with lowwater.connect(address) as lw:
        for question in questions:
            name, *hours = question.split(",")
            times = [datetime(2013, 1, 9, int(hour), tzinfo=UTC) for hour in hours]
            run = Run(runId=str(generate_new_uuid()), facets={NAME: facet_of(lw, name, *times)})
            now = datetime.now(UTC).isoformat()
            client.emit(
                RunEvent(
                    eventType=RunState.COMPLETE, eventTime=now, run=run, job=Job("tests", name), producer="urn:tests"
                )
            )


if __name__ == "__main__":
    main()
