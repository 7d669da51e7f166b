"""A worker that is a process of its own: ``worker_child ADDRESSES COMPUTATION BOUND...``; a number a line moves its ranges there."""

from __future__ import annotations

import json
import sys

import lowwater


def main(addresses: str, name: str, *bounds: str) -> None:
    """Claim, then do as the lines say; answers each with what became of it."""
    with lowwater.connect(addresses) as lw, lw.worker(name, name="child") as worker:
        lease = worker.claim(bounds=[bound.encode() for bound in bounds])
        print(json.dumps({"sequencer": lease.sequencer}), flush=True)
        for line in sys.stdin:
            error = ""
            try:
                lease.advance(None, oldest=int(line), frontier=int(line))
                lease.flush(60)
            except lowwater.StaleSequencer as stale:
                error = stale.reason
            print(json.dumps({"error": error, "lost": sorted(lease.lost), "live": sorted(lease.live)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
