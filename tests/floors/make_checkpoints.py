"""Writes the checkpoints of Spark 3.5 that unit tests read: ``python -m tests.floors.make_checkpoints``, some minutes.

Real queries make them (`stateful.py`, `functions.scala`). The files are stored from which a sidecar reads what the query holds; of those with rows only the names.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from pathlib import Path

from tests.compatibility.environments import clean_environ
from tests.floors.environments import OLDEST, environment
from tests.floors.job import SETTINGS
from tests.kit.program import run_program

HERE = Path(__file__).parent
PACKAGE = "org.apache.spark.sql.execution.streaming.state"
FEW = ("window", "session", "dropDuplicates", "dropDuplicatesWithinWatermark", "left outer join")
RUNS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "hdfs": ("HDFSBackedStateStoreProvider", {}, ()),
    "rocksdb": ("RocksDBStateStoreProvider", {}, (*FEW, "function with a timeout", "limit", "changed")),
    "changelog": ("RocksDBStateStoreProvider", {"rocksdb.changelogCheckpointing.enabled": "true"}, FEW[:1]),
}
"""The provider of state stores, its settings, and the queries; none: all of them."""


def main() -> None:
    python = environment(OLDEST, (), "pandas<3", "pyarrow<20", "numpy<2", name=f"{OLDEST}-pandas")
    [shell] = Path(python).parent.parent.glob("lib/*/site-packages/pyspark/bin/spark-shell")
    clean = {name: value for name, value in clean_environ().items() if name not in ("SPARK_HOME", "PYSPARK_PYTHON")}
    for name, (provider, more, queries) in RUNS.items():
        stores = {f"spark.sql.streaming.stateStore.{setting}": value for setting, value in more.items()}
        stores["spark.sql.streaming.stateStore.providerClass"] = f"{PACKAGE}.{provider}"
        settings = ["--master", "local[1]"]
        for setting, value in {**SETTINGS, **stores}.items():
            settings += ["--conf", f"{setting}={value}"]
        with tempfile.TemporaryDirectory() as folder:
            submit = shlex.join([*settings, "pyspark-shell"])
            environ = {**clean, "PYSPARK_PYTHON": python, "PYSPARK_SUBMIT_ARGS": submit}
            run([python, str(HERE / "stateful.py"), folder, *queries], environ)
            if not queries:
                # Line by line: a file that is loaded as one deadlocks, because tasks wait for the class whose making runs them.
                program = (HERE / "functions.scala").read_text(encoding="ascii")
                run([str(shell), *settings], {**clean, "FOLDER": folder}, program)
            stored = {path.name: files(path) for path in sorted(Path(folder).iterdir()) if path.name != "in"}
        text = json.dumps(stored, indent=1) + "\n"
        (HERE / "checkpoints" / f"{name}.json").write_text(text, encoding="ascii")
        print(f"{name}: {', '.join(stored)}", flush=True)


def run(command: list[str], environ: dict[str, str], typed: str = "") -> None:
    done = run_program(command, cwd=HERE, env=environ, timeout=1200, input=typed)
    assert done.returncode == 0, done.stderr[-5_000:]


def files(checkpoint: Path) -> dict[str, str | None]:
    """Each file by its path: its bytes as Latin-1, or None where it has rows."""
    contents: dict[str, str | None] = {}
    for path in sorted(checkpoint.rglob("*")):
        name = path.relative_to(checkpoint).as_posix()
        if path.is_dir() or path.name.startswith(".") or name.startswith("sources/"):
            continue
        rows = name.startswith("state/") and path.name != "schema"
        contents[name] = None if rows else path.read_bytes().decode("latin-1")
    return contents


if __name__ == "__main__":
    main()
