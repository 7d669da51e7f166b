"""A query of micro-batches: each is planned, run by tasks, prepared, committed by the query itself, and then by the authority."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lowwater import TaskAttempt, errors
from lowwater.aio import Client
from tests.simulation.programs import Place, Share, may_finish, oldest_of, register, results
from tests.simulation.storage import Fenced, Plan
from tests.simulation.truth import MAX, MIN, Node

if TYPE_CHECKING:
    from lowwater.aio import Lease, Worker
    from tests.simulation.kernel import Process


async def run_batches(place: Place, process: Process, name: str, share: Share) -> None:
    random = place.random(process)
    node = place.pipeline.nodes[name]
    async with place.client(process) as lw:
        await register(place, lw, name)
        ordinal, generation, logged = await place.storage.begin_run(name)
        if not place.calm and random.random() < 0.5:
            await asyncio.sleep(random.uniform(0, 5))  # a slow start: another run may be quicker
        async with lw.worker(
            name, name=process.name, identity=f"checkpoint of {name}", generation=generation, ordinal=ordinal
        ) as worker:
            digest = logged.digest if logged is not None else b""
            lease = await worker.claim(bounds=share.bounds(node), batch_digest=digest)
            place.oracle.claimed(process, name, lease.sequencer, share)
            try:
                await place.storage.open(name, share.cells, lease.sequencer)
                batch = generation
                while True:
                    await _batch(place, process, lw, worker, lease, node, share, batch)
                    batch += 1
                    await asyncio.sleep(random.uniform(0.1, 2.0))
            except Fenced:
                place.sim.reach("storage refused a zombie")


async def _batch(
    place: Place, process: Process, lw: Client, worker: Worker, lease: Lease, node: Node, share: Share, batch: int
) -> None:
    random = place.random(process)
    plan = await place.storage.plan(node.name, batch, lease.sequencer, None)
    if plan is None:
        inputs = await worker.inputs()
        place.oracle.folded(process, node.name, inputs)
        pending = await place.storage.read(node.name, share.cells, lease.sequencer)
        plan = await place.storage.plan(node.name, batch, lease.sequencer, Plan(inputs, pending))
        assert plan is not None
    else:
        place.sim.reach("a micro-batch was replayed")
    inputs, low = plan.inputs, plan.inputs.low.micros
    finished = {}
    remaining = {}
    for index in share.cells:
        records = plan.records[index]
        # A part of what could be done is left for a later batch: what stays behind is in the tasks' words alone.
        ready = [record for record in records if may_finish(node, record, low) and (record.number + batch) % 4]
        finished[index] = (ready, results(node, ready))
        remaining[index] = [record for record in records if record not in ready]
    tasks = []
    for handle in share.handles():
        attempt = 0
        if random.random() < 0.1:
            # A task that fails tells nothing true; a second attempt does the work.
            await _stage(place, lw, node, lease, batch, TaskAttempt(0, handle, 0), [handle], [MAX])
            attempt = 1
        task = TaskAttempt(0, handle, attempt)
        await _stage(
            place, lw, node, lease, batch, task, [handle], [oldest_of(node, share.cells_of(handle), remaining, inputs)]
        )
        tasks.append(task)
    bound = node.stamp(low)
    missing: Sequence[TaskAttempt] = tasks
    try:
        missing = await lw.batches.prepare(
            node.name, lease.sequencer, batch, digest=plan.digest, tasks=tasks, bound=bound, seen=inputs
        )
        place.note_outcome("prepare")
    except (errors.Timeout, errors.Unavailable, errors.ShuttingDown, errors.JournalFailed) as error:
        place.note_outcome("prepare", error)
    await place.storage.commit(node.name, batch, lease.sequencer, finished, low if node.window else MIN)
    if missing:
        place.sim.reach("a micro-batch was held for a missing part")
        return
    try:
        await lw.batches.commit(node.name, lease.sequencer, batch)
        place.note_outcome("commit")
    except (errors.Timeout, errors.Unavailable, errors.ShuttingDown, errors.JournalFailed, errors.NotPrepared) as error:
        place.note_outcome("commit", error)
    except (errors.InputVersion, errors.IncarnationChanged) as error:
        place.note_outcome("commit", error)
        raise Fenced from error  # folds that do not count any more: claim again


async def _stage(
    place: Place,
    lw: Client,
    node: Node,
    lease: Lease,
    batch: int,
    task: TaskAttempt,
    handles: list[int],
    oldest: list[int],
) -> None:
    try:
        await lw.batches.stage_task(node.name, lease.sequencer, batch, task, handles=handles, oldest=oldest)
        place.note_outcome("stage")
    except (errors.Timeout, errors.Unavailable, errors.ShuttingDown, errors.Overloaded) as error:
        place.note_outcome("stage", error)
