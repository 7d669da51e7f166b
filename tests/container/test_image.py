"""The Dockerfile: what it may hold, its steps run in a folder, and the authority as it comes out of them, confined as in a container."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from email.parser import Parser
from pathlib import Path

import pytest

import lowwater
from lowwater_authority.commands.serve_arguments import parser
from lowwater_authority.serve import choose_places
from tests.compatibility.environments import UV, clean_environ
from tests.container.confined import USER, confined, ways
from tests.container.dockerfile import PYTHON, ROOT, Image, ignored, patterns, steps
from tests.process.serving import Serving

pytestmark = [pytest.mark.process, pytest.mark.slow]

DOCKERFILE = steps((ROOT / "container/Dockerfile").read_text())
FINAL = [step for step in DOCKERFILE if step.stage == 2]

NOT_RUN = frozenset({("python3.11", "-m", "pip", "install"), ("python3.11", "-m", "pip", "uninstall")})
"""Steps that bring uv into the base, and take pip out of it; docs/operate/operations.md says so."""

INSTALLED = {
    *("lowwater", "lowwater-server", "lowwater-authority", "lowwater-page", "lowwater-regions", "aiohttp", "numpy"),
    *("redis", "opentelemetry-sdk"),
}
"""Some of our packages, of those that they need, and of the extras redis and otel."""
KEPT_OUT = {"lowwater-spark", "lowwater-pipeline", "pyspark", "pandas", "pyarrow", "pip", "setuptools", "uv"}

MOST_BYTES = 200_000_000
"""The greatest size of /opt/lowwater. It was 126 MB when this was written."""

AT = datetime(2013, 1, 9, 14, tzinfo=UTC)


def only(word: str) -> str:
    (step,) = [step for step in FINAL if step.word == word]
    return step.text


def test_both_stages_have_one_base_of_a_whole_version() -> None:
    assert [step.text for step in DOCKERFILE if step.word == "FROM"] == ["${BASE} AS build", "${BASE}"]
    (base,) = [step.text for step in DOCKERFILE if step.stage == 0]
    assert re.fullmatch(r"BASE=python:3\.11\.\d+-slim-[a-z]+", base), "a Python that is known"


def test_what_the_image_starts_and_as_whom() -> None:
    assert only("USER") == f"{USER}:{USER}"
    assert only("EXPOSE") == "7420 7421 7422"
    assert only("VOLUME") == '["/data"]'
    commands = {step.word: step.arguments for step in FINAL if step.word in ("ENTRYPOINT", "CMD")}
    assert commands == {"ENTRYPOINT": ["lowwater"], "CMD": ["serve", "--data", "/data", "--listen", "0.0.0.0:7420"]}
    args = parser().parse_args(commands["CMD"][1:])
    choose_places(args)
    assert args.data == Path("/data")
    assert [args.listen.rpartition(":")[2], args.http.rpartition(":")[2]] == ["7420", "7421"]
    (labels,) = [step.settings for step in FINAL if step.word == "LABEL"]
    assert labels.keys() == {
        f"org.opencontainers.image.{label}" for label in ("title", "description", "licenses", "version", "revision")
    }


def test_no_step_needs_a_shell_or_fetches_by_itself() -> None:
    assert {step.word for step in DOCKERFILE} <= {
        *("ARG", "FROM", "WORKDIR", "ENV", "COPY", "RUN", "LABEL", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK"),
        *("ENTRYPOINT", "CMD"),
    }, "no ADD, no SHELL"
    runs = [step.arguments for step in DOCKERFILE if step.word == "RUN"]
    assert {arguments[0] for arguments in runs} <= {"python3.11", "uv", "rm", "install", "lowwater"}
    installs = [arguments for arguments in runs if "install" in arguments[:4] and arguments[0] != "install"]
    assert len(installs) == 3
    for arguments in installs:
        assert "--require-hashes" in arguments or "--no-index" in arguments, arguments


def test_the_version_is_that_of_the_wheels_and_uv_that_of_the_setup() -> None:
    project = (ROOT / "authority/pyproject.toml").read_text()
    (version,) = re.findall(r'^version = "(.+)"', project, re.MULTILINE)
    assert [step.text for step in FINAL if step.word == "ARG"] == [f"VERSION={version}", "REVISION=unknown"]
    (pin,) = re.findall(r"^UV_PIN=(\S+)", (ROOT / "scripts/setup.sh").read_text(), re.MULTILINE)
    assert f"uv=={pin} " in (ROOT / "container/build.txt").read_text()
    assert f"uv=={pin}\n" in (ROOT / "container/build.in").read_text()


def test_what_the_context_holds() -> None:
    rules = patterns()
    assert rules[0] == "*", "what nobody allowed stays out"
    for path in (
        ".git/config",
        ".venv/bin/python",
        "lowwater-data/journal.sqlite",
        "client/src/a/__pycache__/b.pyc",
        "key.pem",
    ):
        assert ignored(path, rules), path
    for path in ("client/src/lowwater/py.typed", "uv.lock", "authority/pyproject.toml", "container/build.txt"):
        assert not ignored(path, rules), path


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with tempfile.TemporaryDirectory(prefix="lowwater-image-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        built = Image(Path(folder).resolve(), NOT_RUN)
        built.base()
        # uv of this machine for the image's own; and where a Python with a shared library finds it.
        outside = {name: value for name, value in clean_environ().items() if not name.startswith("PYTHON")}
        outside["LD_LIBRARY_PATH"] = built.place("/usr/local/lib")
        outside["PATH"] = f"{built.place('/usr/local/bin')}:{Path(UV).parent}:/usr/bin:/bin"
        built.build(DOCKERFILE, outside)
        built.environment["LD_LIBRARY_PATH"] = built.place("/usr/local/lib")
        yield built


class Contained(Serving):
    def __init__(self, image: Image) -> None:
        super().__init__(Path(image.place("/data")))
        self.image = image

    def program(self) -> list[str]:
        entry, options = (next(step.arguments for step in FINAL if step.word == way) for way in ("ENTRYPOINT", "CMD"))
        command = [self.image.place("/opt/lowwater/bin/") + entry[0], *map(self.image.place, options)]
        return confined(command, data=self.data, environment=self.image.environment)

    def journal(self) -> list[str]:
        return []


def test_every_step_was_run_but_those_of_the_base(image: Image) -> None:
    assert [step.split()[3] for step in image.unrun] == ["install", "uninstall"]
    assert not Path(image.place("/usr/local/lib/python3.11/ensurepip")).exists()


def test_what_is_installed(image: Image) -> None:
    folder = Path(image.place("/opt/lowwater"))
    packages = {}
    for metadata in folder.glob("lib/*/site-packages/*.dist-info/METADATA"):
        about = Parser().parsestr(metadata.read_text(), headersonly=True)
        packages[about["Name"].lower().replace("_", "-")] = about
        assert (metadata.parent / "RECORD").exists(), "whoever makes a list of materials reads these"
        assert about["License-Expression"] or about["License"] or about.get_all("Classifier"), about["Name"]
    assert packages.keys() >= INSTALLED
    assert not packages.keys() & KEPT_OUT
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"/opt/lowwater: {size / 1e6:.0f} MB")
    assert size < MOST_BYTES
    modules = folder.glob("lib/*/site-packages/lowwater_authority/**/*.py")
    assert all(list((module.parent / "__pycache__").glob(f"{module.stem}.*.pyc")) for module in modules)
    library = Path(image.place("/usr/local/lib")) / PYTHON
    assert list((library / "asyncio/__pycache__").glob("base_events.*.pyc")), "also of what it imports of the library"
    for name in ("pip", "uv", "cc", "gcc"):
        assert not (folder / "bin" / name).exists()


def test_only_data_can_be_written_to(image: Image) -> None:
    data = Path(image.place("/data"))
    print(f"confined by: {', '.join(ways()) or 'nothing, for these tests are not run by root'}")
    if not ways():
        return

    def touch(path: Path) -> int:
        command = confined(["touch", str(path)], data=data, environment={"PATH": "/usr/bin:/bin"})
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert touch(data / "x") == 0
    (data / "x").unlink()
    others = [image.folder / "usr/local/x", image.folder / "opt/lowwater/lib/x"]
    others += [Path("/tmp/x"), Path("/var/tmp/x"), Path("/dev/shm/x")] if "read-only root" in ways() else []
    assert {path: touch(path) for path in others} == dict.fromkeys(others, 1)


def healthy(image: Image, server: Serving) -> bool:
    command = next(step.arguments for step in FINAL if step.word == "HEALTHCHECK")
    assert "7421" in command[-1]
    port = server.endpoint.rstrip("/").rpartition(":")[2]
    here = [image.place(f"/usr/local/bin/{command[0]}"), *command[1:-1], command[-1].replace("7421", port)]
    return subprocess.run(here, env=image.environment, capture_output=True, check=False).returncode == 0


def test_it_serves_takes_a_claim_and_has_it_after_a_restart(image: Image) -> None:
    with Contained(image) as server, lowwater.connect(server.address, timeout=60) as lw:
        assert server.process is not None
        facts = dict(row.split(":\t", 1) for row in Path(f"/proc/{server.process.pid}/status").read_text().splitlines())
        if ways():
            assert facts["Uid"].split() == [str(USER)] * 4
            assert (int(facts["CapEff"], 16), int(facts["CapBnd"], 16), facts["NoNewPrivs"].strip()) == (0, 0, "1")
        assert healthy(image, server)
        lw.register("flights")
        lease = lw.worker("flights").claim()
        lease.advance(None, oldest=None, frontier=AT)
        lease.flush(60)
        assert server.stop() == 0
        assert not healthy(image, server)
        server.start()
        assert lw.wait("flights", AT, timeout=60).low.datetime() == AT
        lease.advance(None, oldest=None, frontier=AT.replace(hour=15))
        lease.flush(60)
        assert not lease.lost
        assert server.stop() == 0
    written = sorted(path.name for path in server.data.iterdir())
    assert written == ["journal.sqlite", "journal.sqlite.lock"], "no bytecode, no cache, no trace of a home"
    if ways():
        assert {(server.data / name).stat().st_uid for name in written} == {USER}
