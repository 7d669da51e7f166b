"""An executor has the application's shipped code, and knows how to reach the authority."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.cluster.application import Application
from tests.cluster.shipping import ENVIRONMENT, Shipped
from tests.cluster.standalone import Standalone
from tests.compatibility.environments import clean_environ
from tests.kit.program import run_program

PEM = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_executors_have_the_shipped_code_and_the_settings(tmp_path: Path, shipped: Shipped) -> None:
    """Address, token and namespace travel with the tasks; a CA is found by its name in the executor, key and certificate by their paths."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    files = {"ca": tmp_path / "ca.pem", "key": mounted / "tls.key", "certificate": mounted / "tls.crt"}
    for name, file in files.items():
        file.write_text(PEM.format(name), encoding="utf-8")
    conf = {
        "spark.lowwater.address": "authority.example:7420",
        "spark.lowwater.token": "s3cret",
        "spark.lowwater.namespace": "team",
        "spark.lowwater.ca": "ca.pem",
        "spark.lowwater.key": str(files["key"]),
        "spark.lowwater.certificate": str(files["certificate"]),
    }
    path = tmp_path / "found.json"
    with Standalone(tmp_path / "cluster") as cluster:
        program = Path(__file__).with_name("settings_driver.py")
        application = Application(cluster, shipped, tmp_path, program)
        application.start({"found": str(path)}, conf, "--files", str(files["ca"]))
        assert application.wait(300) == 0, application.tail()
    facts = json.loads(path.read_text(encoding="utf-8"))
    assert Path(facts["driver"]).is_relative_to(shipped.site)
    for task in facts["executors"]:
        # The executor's own directory, which Spark has unpacked the archive in.
        assert Path(task["place"]).is_relative_to(tmp_path / "cluster/work")
        assert task["python"] == shipped.python
        for module in ("lowwater", "spark"):
            assert Path(task[module]).is_relative_to(Path(task["place"], ENVIRONMENT))
        assert json.loads(task["settings"]) == ["authority.example:7420", "s3cret", "team", True]
        assert json.loads(task["credentials"]) == [
            hashlib.sha256(file.read_bytes()).hexdigest() for file in files.values()
        ]
    [log] = application.events.glob("app-*")
    assert "s3cret" not in log.read_text(encoding="utf-8"), "Spark hides what is called a token"


@pytest.mark.timeout(400)
def test_py_files_carry_our_wheels_and_not_grpc(tmp_path: Path, shipped: Shipped) -> None:
    """The pure wheels import from zips as --py-files ships them, where gRPC is installed; gRPC from a zip does not."""
    zips = []
    for name in ("lowwater-", "lowwater_spark-"):
        [wheel] = shipped.wheels.glob(f"{name}*.whl")
        zips.append(wheel.with_suffix(".zip"))
        zips[-1].write_bytes(wheel.read_bytes())
    rest = tmp_path / "rest"
    rest.mkdir()
    for folder in ("grpc", "google", "typing_extensions.py"):
        (rest / folder).symlink_to(shipped.site / folder)
    program = "import lowwater_spark, lowwater; lowwater.connect('localhost:1').close(); print(lowwater_spark.__file__)"

    def imported(*path: Path) -> subprocess.CompletedProcess[str]:
        environ = clean_environ() | {"PYTHONPATH": ":".join(map(str, path))}
        return run_program([shipped.python, "-c", program], env=environ, timeout=60)

    done = imported(*zips, rest)
    assert done.stdout.startswith(str(zips[1])), done.stderr
    packed = tmp_path / "grpc.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for file in sorted((shipped.site / "grpc").rglob("*")):
            archive.write(file, file.relative_to(shipped.site))
    (rest / "grpc").unlink()
    failed = imported(*zips, packed, rest)
    assert failed.returncode == 1
    assert "cygrpc" in failed.stderr
