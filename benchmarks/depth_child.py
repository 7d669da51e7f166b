"""One computation of a chain, as a process.

``python -m benchmarks.depth_child ADDRESS INPUT NAME`` prints a line when it has claimed, and ends
with its input.
"""

from __future__ import annotations

import sys
import threading

import lowwater
from benchmarks.depth import follow


def main(address: str, before: str, name: str) -> None:
    """Follow until there is nothing more to read."""
    lw = lowwater.connect(address)
    worker = lw.worker(name)
    lease = worker.claim()
    threading.Thread(target=follow, args=(lw, before, worker, lease), daemon=True).start()
    print("claimed", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
