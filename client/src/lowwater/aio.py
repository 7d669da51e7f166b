"""The client on asyncio: names and rules of :mod:`lowwater`, with coroutines for what waits.

    async with lowwater.aio.connect() as lw:
        await lw.register("enriched", inputs=["flights"])
        async with lw.worker("enriched") as worker:
            lease = await worker.claim()
            seen = await worker.inputs()      # first the snapshot,
            await process(everything_there())   # then all data that had arrived,
            lease.advance(seen, oldest=None)    # then the claim

Event times, views and errors are those of :mod:`lowwater`.
"""

from lowwater._async.batches import Batches
from lowwater._async.client import Client
from lowwater._async.connect import connect
from lowwater._async.inputs import InputReader
from lowwater._async.lease import Lease
from lowwater._async.tasks import TaskLease, Tasks
from lowwater._async.worker import Worker

__all__ = ["Batches", "Client", "InputReader", "Lease", "TaskLease", "Tasks", "Worker", "connect"]
