"""The files that an application brings along to a cluster: an archive with our wheels and what they need, and its own code."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.compatibility.environments import ROOT, build, uv

ENVIRONMENT = "lowwater-env"
"""The archive's name where it is unpacked: in the working directory of each executor, and of the driver."""

CODE = (
    "tests/__init__.py",
    "tests/cluster/__init__.py",
    "tests/cluster/job.py",
    "tests/spark/__init__.py",
    "tests/spark/updates.py",
)
"""The modules of the application that its tasks import."""

WHEELS = ("grpcio", "protobuf", "typing-extensions", "confluent-kafka")
"""The packages that our wheels need beside PySpark; the last for ``batch.write_kafka`` alone."""


@dataclass(frozen=True)
class Shipped:
    python: str
    """The cluster's own interpreter: with pandas and pyarrow, as PySpark's mapInArrow needs them, and nothing of ours nor gRPC."""
    site: Path
    """The unpacked archive, for the driver."""
    archive: Path
    wheels: Path
    """The three distributions' wheels."""
    code: Path
    """A zip for --py-files."""


def ship(folder: Path) -> Shipped:
    """Build wheels of this source tree and pack them as docs/operate/spark-cluster.md says. About 8 s."""
    wheels, site, python = folder / "wheels", folder / "driver" / ENVIRONMENT, folder / "interpreter"
    built = build(wheels)
    ours = [str(built["lowwater"]), str(built["lowwater-spark"])]
    uv("venv", "--quiet", "--python", sys.executable, str(python))
    locked = folder / "locked.txt"
    locked.write_text(uv("export", "--frozen", "--no-emit-workspace", "--no-hashes", "--all-packages", "--quiet"))
    binary = ("--quiet", "--only-binary", ":all:", "--constraint", str(locked))
    uv("pip", "install", *binary, "--python", str(python / "bin/python"), "pandas", "pyarrow")
    # These two are the cluster's: what else the wheels need is named, and not looked up.
    uv("pip", "install", *binary, "--target", str(site), "--no-deps", *ours, *WHEELS)
    # Compiled once, and not by each new executor: it holds wherever the archive is unpacked, whatever the files' times become.
    compiling = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(site)]
    subprocess.run(compiling, check=True)
    archive = folder / f"{ENVIRONMENT}.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(site, ".")
    code = folder / "job.zip"
    with zipfile.ZipFile(code, "w") as packed_code:
        for module in CODE:
            packed_code.write(ROOT / module, module)
    return Shipped(str(python / "bin/python"), site, archive, wheels, code)
