"""Write the client on threads, lowwater._sync, from the one on asyncio, lowwater._async.

python -m scripts.generate_sync            write it
python -m scripts.generate_sync --check    exit 1 when a file is out of date

Both differ in `async` and `await` only, so the code is written once. Threads wait in another way
than tasks; that code is in lowwater._drive, twice under the same names. TEXTS has the texts that
differ.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "client" / "src" / "lowwater"
SOURCE: Final = PACKAGE / "_async"
TARGET: Final = PACKAGE / "_sync"

CODE: Final = {
    r"\basync (def|with|for)\b": r"\1",
    r"\bawait ": "",
    r"\b__a(enter|exit|iter)__": r"__\1__",
    r"\b__anext__": "__next__",
    r"\bStopAsyncIteration\b": "StopIteration",
    r"\bAsyncGenerator\[(\w+), None\]": r"Iterator[\1]",
    r"\bAsyncGenerator\b": "Iterator",
    r"\blowwater\._async\b": "lowwater._sync",
    r"\blowwater\._drive\.tasks\b": "lowwater._drive.threads",
    r" *# noqa: ASYNC\d+": "",
    r"\s+Cancelled, [^.]+\.": "",  # a sentence of a description: no caller cancels a call on a thread
}
"""Patterns and their replacements, in this order."""

TEXTS: Final = {
    "__init__": {
        """The client that a program uses, written for asyncio. :mod:`lowwater._sync` is made of it.""": (
            """The client that a program uses, for threads: made of :mod:`lowwater._async`."""
        ),
    },
    "client": {
        "one object per event loop": "one object per process or program",
        """A client of one authority, on asyncio. Use it as an async context manager.

    :func:`lowwater.aio.connect` makes it. It belongs to the process and the event loop of its first
    use, and starts at most two tasks for each shard: one reports, one watches. A cancelled call
    leaves it usable. Calls raise LowwaterError: Unavailable when no server answers within the
    timeout, Closed after :meth:`close`, and in another process or loop.
""": """A client of one authority. Use it as a context manager.

    :func:`lowwater.connect` makes it. Safe for threads. After a fork the child may go on with an
    inherited client: it makes its own connection at the first use. Leases stay with the process
    that claimed them. Calls raise LowwaterError: Unavailable when no server answers within the
    timeout, Closed after :meth:`close`.
""",
        """Ends when the client is closed. Raises ServerTokenMismatch when
        another deployment answers.""": """Ends when the client is closed, and in a forked child,
        where another may begin. Raises ServerTokenMismatch when another deployment answers.""",
        "the client's workers, tasks and connection": "the client's workers, threads and connection",
    },
    "connect": {"Return a client for the running event loop.": "Return a client."},
    "inputs": {
        """Use it as an async context manager, or call
    :meth:`close`.""": """Safe for threads; a
    forked child may go on with an inherited reader.""",
        "in another task ends": "in another thread ends",
    },
    "lease": {
        """which a
    background task reports""": """which a
    background thread reports""",
        """Not for other threads.
""": """Safe for threads. After a fork it
    stays with the parent: in the child every call raises Closed.
""",
    },
    "reporter": {
        "The tasks that report": "The threads that report",
        "gRPC's sender asks for them.\n\n    No generator: one that is left in the middle would be closed later, by a task of its own.\n": (
            "gRPC's sending thread asks for them.\n"
        ),
    },
    "runtime": {
        "Channels and tasks of a client on its event loop": "Channels and threads of a client in one process",
        "One event loop's connection": "One process's connection",
        "End the tasks and close": "End the threads and close",
    },
    "watcher": {"The tasks that follow": "The threads that follow"},
    "worker": {"Use it as an async context manager": "Use it as a context manager"},
}
"""Texts about asyncio and their replacements about threads, by module."""


def made_of(source: Path) -> str:
    """Return the module for threads that belongs to one for asyncio."""
    text = source.read_text("utf-8")
    for here, replacement in TEXTS.get(source.stem, {}).items():
        pattern = r"\s+".join(map(re.escape, re.split(r"\s+", here)))
        text, count = re.subn(pattern, replacement.replace("\\", r"\\"), text)
        if count != 1:
            msg = f"{source.relative_to(ROOT)} says {count} times, and not once, {here!r}: correct TEXTS in {__file__}"
            raise ValueError(msg)
    for pattern, instead in CODE.items():
        text = re.sub(pattern, instead, text)
    text = f"# Made by scripts/generate_sync.py from {source.relative_to(PACKAGE)}: change that one.\n{text}"
    # Names are sorted again, and shorter lines wrapped again.
    text = _ruff("check", "--quiet", "--fix", "--select", "I", text=text, name=TARGET / source.name)
    return _ruff("format", "--quiet", text=text, name=TARGET / source.name)


def _ruff(*arguments: str, text: str, name: Path) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(name), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def main() -> int:
    """Write, or compare; returns the exit code."""
    modules = {TARGET / source.name: made_of(source) for source in sorted(SOURCE.glob("*.py"))}
    stale = [path for path, text in modules.items() if not path.exists() or path.read_text("utf-8") != text]
    stale += [path for path in sorted(TARGET.glob("*.py")) if path not in modules]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale; run: make gen", file=sys.stderr)
        return int(bool(stale))
    for path in stale:
        if path in modules:
            path.write_text(modules[path], "utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
