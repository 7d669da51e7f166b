"""Fetch the jars of tests, brokers and connectors, by Maven into a folder that all checkouts share.

``python -m scripts.jars`` fetches missing sets (`scripts/setup.sh --tests` runs it). ``--lock``
rewrites jars.sha256 after a version below has changed. Maven compares each file with the checksum
of its repository; this script compares it with jars.sha256, so that it is the same everywhere. None
of these jars is shipped.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SETS: Final = {
    # A Kafka broker as a process of its own. Without the last it logs nothing.
    "broker": ("org.apache.kafka:kafka_2.13:4.2.0", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.3"),
    # Spark's connector for Kafka, and Delta.
    "kafka": ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",),
    "delta": ("io.delta:delta-spark_4.2_2.13:4.4.0",),
    # Iceberg, whose newest runtime is for the Spark before: its tests have an environment of their
    # own.
    "iceberg": ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",),
    # Hadoop's client of S3, of PySpark's version. It asks for the whole SDK in one jar of 640 MB,
    # which is left out; this is what is used of it.
    "s3": (
        "org.apache.hadoop:hadoop-aws:3.5.0",
        *(f"software.amazon.awssdk:{part}:2.35.4" for part in ("s3-transfer-manager", "apache-client", "sts")),
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
    ),
    # The client of GCS, in one jar with all that it needs under names of its own.
    "gcs": ("com.google.cloud.bigdataoss:gcs-connector:3.1.3:shaded",),
    # HDFS in one process. It brings Hadoop's client of its own version, which is not the one of
    # PySpark.
    "hdfs": ("org.apache.hadoop:hadoop-client-minicluster:3.4.2", "org.slf4j:slf4j-reload4j:1.7.36"),
}
"""Artifacts of each set; its folder has them and their dependencies."""

_BESIDE_SPARK: Final = ("kafka", "delta", "iceberg", "s3")
_OF_SPARK: Final = (
    *(
        "org.apache.hadoop:*",
        "org.apache.parquet:*",
        "org.apache.logging.log4j:*",
        "org.slf4j:*",
        "org.roaringbitmap:*",
    ),
    *("org.scala-lang:*", "org.scala-lang.modules:*", "org.apache.spark:spark-tags_2.13", "com.google.code.findbugs:*"),
    *("com.fasterxml.jackson.core:*", "com.fasterxml.jackson.datatype:*", "org.xerial.snappy:*", "at.yawk.lz4:*"),
    *(
        "software.amazon.awssdk:bundle",
        "io.netty:*",
        "org.apache.httpcomponents:*",
        "commons-codec:*",
        "commons-logging:*",
    ),
)
"""Artifacts that PySpark has in another version: sets used with PySpark leave them out."""

_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_SUMS: Final = Path(__file__).with_name("jars.sha256")


def jars(name: str) -> list[Path]:
    """Return the jars of a set, which must be here. Raises FileNotFoundError with what to run."""
    folder = _folder(name)
    if not folder.is_dir():
        msg = f"the jars of {name!r} are not in {folder}: run scripts/setup.sh --tests"
        raise FileNotFoundError(msg)
    return sorted(folder.glob("*.jar"))


def _folder(name: str) -> Path:
    """Return the folder of a set; another version has another folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(
        "".join(f"{jar} {checksum}\n" for jar, checksum in _locked(name).items()).encode()
    ).hexdigest()
    return cache / "lowwater/jars" / f"{name}-{digest[:12]}"


def _locked(name: str) -> dict[str, str]:
    """Return the locked checksums of a set, by file name."""
    lines = (line.split() for line in _SUMS.read_text(encoding="utf-8").splitlines())
    return {Path(path).name: checksum for checksum, path in lines if path.startswith(f"{name}/")}


def _sums(folder: Path) -> dict[str, str]:
    """Return the checksums of a folder, by file name."""
    return {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in sorted(folder.glob("*.jar"))}


def _fetch(name: str, folder: Path) -> None:
    """Let Maven copy a set into a folder."""
    outside = ("*:*",) if name == "gcs" else _OF_SPARK if name in _BESIDE_SPARK else ()
    without = "".join(
        f"<exclusion><groupId>{group}</groupId><artifactId>{artifact}</artifactId></exclusion>"
        for group, artifact in (coordinates.split(":") for coordinates in outside)
    )
    needs = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"{''.join(f'<classifier>{one}</classifier>' for one in classifier)}<exclusions>{without}</exclusions></dependency>"
        for group, artifact, version, *classifier in (coordinates.split(":") for coordinates in SETS[name])
    )
    pom = folder / "pom.xml"
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>lowwater</groupId>'
        f"<artifactId>{name}</artifactId><version>0</version><packaging>pom</packaging><dependencies>{needs}</dependencies></project>",
        encoding="utf-8",
    )
    command = ["mvn", "--batch-mode", "--no-transfer-progress", "--quiet", "--strict-checksums", "--file", str(pom)]
    done = subprocess.run(
        [*command, _COPY, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\nMaven could not bring the jars of {name!r}: its output stands above")
    pom.unlink()


def _bring(name: str) -> None:
    """Fetch a set unless it is here; a partial set is never visible."""
    folder = _folder(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Two checkouts must not fetch the same set at once.
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return
        print(f"jars: fetching {' '.join(SETS[name])} with what it needs", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _fetch(name, Path(scratch))
            if (actual := _sums(Path(scratch))) != (meant := _locked(name)):
                differ = sorted(dict(actual.items() ^ meant.items()))
                raise SystemExit(
                    f"not what jars.sha256 says: {', '.join(differ)}. After a change of version run --lock"
                )
            shutil.move(scratch, folder)
            Path(scratch).mkdir()  # the context removes it


def _lock() -> None:
    """Write the checksums of the files that Maven fetches now."""
    lines = []
    for name in SETS:
        with tempfile.TemporaryDirectory() as scratch:
            _fetch(name, Path(scratch))
            lines += [f"{checksum}  {name}/{jar}\n" for jar, checksum in _sums(Path(scratch)).items()]
    _SUMS.write_text("".join(lines), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lock", action="store_true", help="write the checksums of what is fetched now")
    options = parser.parse_args(arguments)
    if options.lock:
        _lock()
    for name in SETS:
        _bring(name)


if __name__ == "__main__":
    main()
