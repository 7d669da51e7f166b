#!/usr/bin/env bash
# Makes the environment in which an integration is tested:
# integrations/setup.sh airflow|dagster|openlineage. The environment is build/NAME of the checkout,
# with the packages that integrations/NAME/requirements.txt locks. It is apart from the project's own,
# because such programs pin too much. A second run finds its stamp and returns at once.
#
# To lock anew: printf '%s\n' apache-airflow grpcio 'protobuf<8' | uv pip compile --python-version 3.11 --no-annotate --no-header -o integrations/airflow/requirements.txt -
set -euo pipefail

NAME=${1-}
case $NAME in
airflow | dagster | openlineage) ;;
*)
    echo "integrations/setup.sh: pass airflow, dagster or openlineage, not '$NAME'" >&2
    exit 2
    ;;
esac
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
HERE=$ROOT/integrations/$NAME
TARGET=$ROOT/build/$NAME
STAMP=$TARGET/stamp
# shellcheck source=/dev/null
. "$ROOT/.tools/env"
python=$(python -c 'import sys; print(sys._base_executable)')
digest() { { echo "$python" "$ROOT"; cat "$HERE/requirements.txt" "$HERE/pyproject.toml" "$ROOT/integrations/setup.sh"; } | sha256sum | cut -d ' ' -f 1; }

[[ ! -f $STAMP || $(<"$STAMP") != "$(digest)" ]] || exit 0
rm -rf "$TARGET"
uv venv --quiet --python "$python" "$TARGET"
uv pip install --quiet --python "$TARGET/bin/python" --requirement "$HERE/requirements.txt"
uv pip install --quiet --python "$TARGET/bin/python" --no-deps --editable "$ROOT/client" --editable "$HERE"
digest >"$STAMP"
