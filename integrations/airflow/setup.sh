#!/usr/bin/env bash
# Makes the environment in which the provider is tested: Airflow and what it needs, locked in requirements.txt, in build/airflow of the checkout.
# It is not part of the environment of the project: Airflow pins too much. A second run finds its stamp and returns at once.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
# shellcheck source=/dev/null
. "$ROOT/.tools/env"
TARGET=$ROOT/build/airflow
STAMP=$TARGET/stamp
digest() { { python -c 'import sys; print(sys.base_prefix, sys.version)'; cat "$HERE/requirements.txt" "$HERE/setup.sh"; } | sha256sum | cut -d ' ' -f 1; }

[[ ! -f $STAMP || $(<"$STAMP") != "$(digest)" ]] || exit 0
rm -rf "$TARGET"
python=$(python -c 'import sys; print(sys._base_executable)')
uv venv --quiet --python "$python" "$TARGET"
uv pip install --quiet --python "$TARGET/bin/python" --requirement "$HERE/requirements.txt"
uv pip install --quiet --python "$TARGET/bin/python" --no-deps --editable "$ROOT/client" --editable "$HERE"
digest >"$STAMP"
