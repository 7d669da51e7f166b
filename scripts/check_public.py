"""Check that every public name of the client has a known type, as users' type checkers see it.

Generated modules are left out, since the generator writes their stubs.
"""

from __future__ import annotations

import json
import subprocess
import sys


def main() -> int:
    """Print the names without a known type; returns 1 when there are any."""
    command = ["basedpyright", "--verifytypes", "lowwater", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        sys.exit(f"basedpyright has not answered: {done.stderr}")
    answer = json.loads(done.stdout)
    for diagnostic in answer["generalDiagnostics"]:
        print(diagnostic["message"])
    symbols = answer["typeCompleteness"]["symbols"]
    assert any(symbol["isExported"] for symbol in symbols), "the package has no public names: was it found?"
    unknown = [
        symbol
        for symbol in symbols
        if symbol["isExported"] and not symbol["isTypeKnown"] and not symbol["name"].startswith("lowwater.v1.")
    ]
    for symbol in unknown:
        print(symbol["name"], *(problem["message"] for problem in symbol["diagnostics"]), sep="\n  ")
    return int(bool(unknown or answer["generalDiagnostics"]))


if __name__ == "__main__":
    sys.exit(main())
