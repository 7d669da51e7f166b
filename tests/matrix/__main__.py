"""Run the matrix, or cells of it: ``python -m tests.matrix [WORDS ...]``, such as ``connect-s3``. What comes of each cell goes into results.json."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.matrix.cells import CELLS, chosen
from tests.matrix.held import held

RESULTS: Final = Path(__file__).with_name("results.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="WORDS", help="words of cells, joined by '-'; default: all")
    parser.add_argument("--missing", action="store_true", help="only cells without an exact result")
    parser.add_argument("--minutes", type=float, default=600, help="begin no further cell after so many")
    parser.add_argument("--keep", action="store_true", help="keep the folders of failed cells")
    args = parser.parse_args()
    results: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    cells = [cell for cell in chosen(args.cells) if not (args.missing and results.get(str(cell), {}).get("exact"))]
    began, failed = time.monotonic(), 0
    for number, cell in enumerate(cells, 1):
        if time.monotonic() - began > args.minutes * 60:
            print(f"{len(cells) - number + 1} cells are left", flush=True)
            break
        folder, since = Path(tempfile.mkdtemp(prefix=f"matrix-{cell}-")), time.monotonic()
        try:
            outcome = held(cell, folder)
            result = {"exact": outcome.exact, **asdict(outcome)}
        except Exception as failure:  # noqa: BLE001 - one cell's failure stays its own
            traceback.print_exc()
            result = {"exact": False, "error": f"{type(failure).__name__}: {str(failure).splitlines()[0][:200]}"}
        results[str(cell)] = {"spark": cell.spark, **result}
        failed += not result["exact"]
        took = time.monotonic() - since
        print(
            f"{number} of {len(cells)}: {cell} {'exact' if result['exact'] else 'NOT EXACT'} in {took:.0f} s {result}",
            flush=True,
        )
        ordered = {str(each): results[str(each)] for each in CELLS if str(each) in results}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
        if result["exact"] or not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
