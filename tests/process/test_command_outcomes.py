"""Each command exits with the codes of the table in docs/reference/cli.md: each is run into each of its codes, for people and for programs."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowwater
from lowwater.cli import main
from lowwater.cli.commands import COMMANDS
from tests.kit.eventually import eventually
from tests.process.serving import Serving
from tests.process.sharding import Sharded, served
from tests.unit.test_advice import REPORTS

DOCS = Path(__file__).parents[2] / "docs/reference/cli.md"
SOON = "2013-01-09T14:00Z"
LATE = "2033-01-09T14:00Z"
PYTHON = re.compile(r"\w\(\)|\w\((\w+=|'|\")|=(True|False|None)\b|\bNone\b|Client\.|set_inputs|\b(lw|worker|lease)\.\w")
"""The pattern of a sentence for programmers."""
NOBODY = ["--address", "localhost:1", "--answer-within", "50ms"]


class Answering(io.StringIO):
    """Somebody at a terminal, who answers a question."""

    def isatty(self) -> bool:
        return True


class Outcomes:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.codes: dict[str, set[int]] = {}
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
        output = self._capsys.readouterr()
        assert "Traceback" not in output.err
        if arguments[0] != "completion":
            assert PYTHON.search(output.out + output.err) is None, "who types commands is told of commands"
        self.codes.setdefault(arguments[0], set()).add(code)
        return code, output.out, output.err

    def expect(self, code: int, *arguments: str, lw: lowwater.Client | None = None, text: str = "") -> None:
        """Run a command for people, and where it can for programs, and look at how each is answered."""
        where = () if lw is None else ("--address", lw.settings.address)
        got, out, err = self.run(*arguments, *where)
        assert got == code, f"{arguments}: {out}{err}"
        assert text in out + err
        if code >= 2:
            assert err.startswith(("lowwater ", "usage: "))
        if arguments[0] in {"demo", "serve", "access", "completion"}:
            return
        got, out, err = self.run(*arguments, "--json", *where)
        assert (got, err) == (code, ""), arguments
        records = [json.loads(line) for line in out.splitlines()]
        assert records, "no answer at all"
        failed = records[-1].get("error")
        if code >= 2:
            assert len(records) == 1
        if code >= 2 or failed is not None:
            assert failed.keys() == {"reason", "message", "fix", "exit_code", "metadata"}
            assert failed["exit_code"] == code
            assert failed["reason"].isupper()
            assert text in failed["message"]


@pytest.fixture
def outcomes(capsys: pytest.CaptureFixture[str]) -> Outcomes:
    return Outcomes(capsys)


@pytest.fixture
def lw(server: Serving) -> Iterator[lowwater.Client]:
    """A deployment in which ``flights`` is complete to 14:00, ``prod/ledger`` was never claimed, and nothing else is registered."""
    with lowwater.connect(server.address) as client:
        client.register("flights")
        client.register("prod/ledger")
        lease = client.worker("flights", name="exec-7").claim()
        lease.advance(None, oldest=None, frontier=lowwater.Watermark(1_357_740_000_000_000))
        lease.flush()
        yield client


def documented() -> dict[str, set[int]]:
    table = {}
    for row in re.findall(r"^\| `([\w-]+)` \|(.*)\|$", DOCS.read_text().split("## What `why` means")[0], re.MULTILINE):
        table[row[0]] = {code for code, cell in enumerate(row[1].split("|")) if cell.strip() != "-"}
    return table


def test_every_command_exits_with_each_code_that_is_documented_and_with_no_other(
    lw: lowwater.Client, server: Serving, outcomes: Outcomes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect = outcomes.expect
    questions = [[name] for name in ("status", "why", "ranges", "history", "advise", "hot")]
    for name, *rest in (*questions, ["wait", "--until", SOON], ["complete", "--until", SOON]):
        expect(0, name, "flights", *rest, lw=lw)
        expect(2, name, "flihgts", *rest, lw=lw, text="did you mean flights?")
        patience = ["--timeout", "50ms"] if name == "wait" else []
        # On a busy machine it takes a while to hear that nobody is there.
        expect(3, name, "flights", *rest, *patience, *NOBODY, "--answer-within", "500ms", text=" there")
    expect(1, "promise", "sales", "--until", LATE, "--after", SOON, lw=lw, text="sales is not registered, and --after")
    expect(0, "promise", "sales", "--until", SOON, lw=lw)
    assert next(iter(lw.ranges("sales"))).remarks.ended, "a promise by a script leaves no worker that looks dead"
    expect(0, "promise", "sales", "--until", "2013-01-09T12:00Z", lw=lw, text="sales is at 2013-01-09T14:00:00Z")
    expect(1, "promise", "sales", "--until", LATE, "--after", "2013-01-09T14:01Z", lw=lw, text="2013-01-09T14:00:00Z")
    lw.register("sums", inputs=["sales"])
    expect(2, "promise", "sums", "--until", SOON, lw=lw, text="sums reads sales")
    expect(2, "promise", "flights", "--until", LATE, lw=lw, text="exec-7 on")
    with lw.worker("sales", name="by hand") as worker:
        worker.claim().advance(None, oldest=lowwater.Watermark(1_357_740_000_000_000), frontier=LATE)
    expect(2, "promise", "sales", "--until", LATE, "--after", SOON, lw=lw, text="by hand on")
    assert lw.get("sales")["sales"].low == lowwater.Watermark(1_357_740_000_000_000), "its record is not passed"
    expect(0, "promise", "sales", "--until", "finished", "--after", SOON, "--take-over", lw=lw)
    expect(3, "promise", "sales", "--until", SOON, *NOBODY, "--answer-within", "500ms", text="running there?")
    expect(2, "watch", "flihgts", lw=lw, text="did you mean flights?")
    expect(0, "tasks", "list", "flights", lw=lw)
    expect(2, "tasks", "list", "flihgts", lw=lw, text="did you mean flights?")
    expect(2, "tasks", "take", "flights", "daily", lw=lw, text="there is no group of tasks 'daily'")
    expect(3, "tasks", "list", "flights", *NOBODY, "--answer-within", "500ms", text="running there?")
    expect(0, "tasks", "create-group", "flights", "daily", lw=lw)
    expect(1, "tasks", "take", "flights", "daily", lw=lw, text="there is no task to take")
    expect(2, "tasks", "done", str(tmp_path / "nowhere"), lw=lw, text="nowhere cannot be read: No such file")
    (tmp_path / "no-lease").write_text("{}")
    expect(2, "tasks", "release", str(tmp_path / "no-lease"), lw=lw, text="no-lease holds no lease")
    expect(1, "wait", "flights", "--until", LATE, "--timeout", "2s", lw=lw, text="`lowwater why flights` says more")
    unregistered = ["flihgts", "--until", LATE, "--timeout", "2s", "--even-unregistered"]
    expect(1, "wait", *unregistered, lw=lw, text="Start the job that registers it")
    expect(1, "complete", "flights", "--until", LATE, lw=lw)
    expect(2, "complete", "flights", "--until", "noon", lw=lw)
    for end, code, text in ((SOON, 0, "complete: "), (LATE, 1, "from 2013-01-09T14:00:00Z on: all keys at ")):
        expect(code, "complete", "flights", "--from", "2013-01-09T13:00Z", "--to", end, lw=lw, text=text)
    expect(2, "complete", "flights", "--from", SOON, "--to", SOON, lw=lw, text="later than --from")

    (tmp_path / "progress").write_text("\n".join(map(json.dumps, REPORTS)))
    picture = ["--progress", str(tmp_path / "progress"), "--picture", str(tmp_path / "no-folder" / "advice.svg")]
    expect(2, "advise", "flights", *picture, lw=lw, text="advice.svg cannot be written: No such file")
    intervals = ["--every", "1h", "--from", "2013-01-09T10:00Z", "--cursor", str(tmp_path / "cursor"), "--to"]
    markers = [*intervals, f"file:{tmp_path}/markers/%Y-%m-%d/%H"]
    (tmp_path / "markers").write_text("no folder")
    expect(1, "publish", "flights", *markers, "--once", lw=lw, text="tells it of 2013-01-09T10:00:00Z again")
    (tmp_path / "markers").unlink()
    assert outcomes.run("publish", "flights", *markers, "--once", "--address", server.address)[0] == 0
    expect(2, "publish", "flihgts", *markers, lw=lw, text="did you mean flights?")
    expect(2, "publish", "flights", *intervals, "https://u:p@there", lw=lw, text="LOWWATER_PUBLISH_TOKEN")
    expect(3, "publish", "flights", *markers, *NOBODY, "--answer-within", "500ms", text="running there?")
    expect(2, "status", "--ca", "/nowhere.pem", lw=lw, text="/nowhere.pem cannot be read: No such file or directory")

    edits = (["split", "flights", "0x0000"], ["merge", "flights", "0x0000", "0x8000"], ["move", "flights", "0x0", "2"])
    for command in edits:
        expect(2, *command, lw=lw, text="the layout of flights is unknown")
        expect(3, *command, *NOBODY, "--answer-within", "500ms", text="running there?")
    lw.change_layout("flights", 1, lowwater.Layout(0, (0, 0x8000)))
    expect(0, *edits[0], lw=lw)
    expect(0, *edits[2], lw=lw)
    assert outcomes.run(*edits[1], "--address", server.address)[0] == 0
    expect(2, "split", "flights", "0x4444", lw=lw, text="no range starts at 0x4444; the range of that slot starts at")

    expect(2, "retire", "flights", "--start", "", "--end", "", lw=lw, text="exec-7 owns part")
    expect(0, "retire", "prod/ledger", "--start", "", "--end", "", lw=lw)
    expect(3, "retire", "prod/ledger", "--start", "", "--end", "", *NOBODY)
    expect(2, "reset", "flights", lw=lw, text="--yes")
    expect(2, "reset", "flihgts", "--yes", lw=lw)
    expect(3, "reset", "flights", "--yes", *NOBODY)
    for answer in ("n\n", ""):
        monkeypatch.setattr(sys, "stdin", Answering(answer))
        for asking in ("reset", "drop"):
            assert outcomes.run(asking, "flights", "--address", server.address)[0] == 1
    expect(0, "reset", "flights", "--yes", lw=lw)

    expect(2, "set-inputs", "flihgts", "weather", lw=lw, text="did you mean flights?")
    lw.register("hourly", inputs=["flights"])
    expect(0, "set-inputs", "hourly", "prod/ledger", lw=lw)
    assert lw.topology().computations["hourly"].inputs == ("prod/ledger",)
    expect(2, "set-inputs", "prod/ledger", "hourly", lw=lw, text="hourly")
    expect(2, "drop", "prod/ledger", "--yes", lw=lw, text="lowwater set-inputs")
    expect(3, "set-inputs", "hourly", "flights", *NOBODY)
    expect(2, "set-inputs", "hourly", lw=lw)

    lw.register("wide", slices=[b"m"])
    expect(0, "slices", "list", "wide", lw=lw)
    expect(2, "slices", "list", "wiide", lw=lw, text="did you mean wide")
    expect(2, "slices", "split", "wide~7", "--at", "x", lw=lw, text="is no slice of wide")
    expect(2, "slices", "split", "wide", "--at", "x", lw=lw)
    expect(3, "slices", "split", "wide~1", "--at", "x", *NOBODY)
    code, out, _ = outcomes.run("slices", "split", "wide~1", "--at", "x", "--address", server.address, "--json")
    assert (code, json.loads(out)) == (0, {"slice": "wide~1", "new": "wide~2", "start": "78", "end": ""})
    expect(0, "slices", "list", "wide", lw=lw, text="wide~1  0x6d")

    expect(2, "drop", "flihgts", "--yes", lw=lw, text="did you mean flights?")
    expect(3, "drop", "flights", "--yes", *NOBODY)
    assert outcomes.run("drop", "flights", "--yes", "--address", server.address)[0] == 0

    expect(2, "shards", lw=lw)
    for command in (["shards"], ["drain", "there"], ["pin", "flights", "--off"]):
        expect(3, *command, *NOBODY)

    expect(2, "journal", "show", str(tmp_path / "nowhere"))
    access = tmp_path / "access.toml"
    access.write_text('[[principal]]\nname = "etl"\ncertificates = ["etl"]\n')
    expect(0, "access", "check", str(access))
    expect(1, "access", "check", str(access), "--as", "etl", "--may", "read", "flights")
    expect(2, "access", "check", str(tmp_path / "nowhere"))
    expect(0, "completion", "bash")
    expect(2, "completion", "tcsh")
    expect(2, "serve", "--listen", "nowhere")
    expect(0, "demo", "--seconds", "0")
    expect(2, "demo", "--port", "nowhere")
    assert server.stop() == 0
    outcomes.codes["serve"].add(0)
    expect(0, "journal", "show", str(server.data))

    sharded(outcomes, tmp_path / "sharded")
    outcomes.codes = {name: codes - {0} if name == "watch" else codes for name, codes in outcomes.codes.items()}
    assert outcomes.codes == documented()
    assert outcomes.codes.keys() == {*COMMANDS, "demo", "serve", "journal", "access", "completion"}


def sharded(outcomes: Outcomes, folder: Path) -> None:
    folder.mkdir()
    with Sharded(folder, 2) as shards, shards.connect() as lw:
        lw.register("flights")
        eventually(lambda: any("flights" in served(lw, shard) for shard in shards.shards))
        # When all drain, it is where it would be without a pin: it stays at the second, whatever their addresses are.
        first, second = sorted(shards.shards, key=lambda shard: "flights" in served(lw, shard))
        one, two = first.address, second.address
        outcomes.expect(0, "shards", lw=lw)
        outcomes.expect(0, "pin", "flights", two, lw=lw)
        eventually(lambda: "flights" in served(lw, second))
        outcomes.expect(2, "pin", "flihgts", one, lw=lw, text="did you mean flights?")
        outcomes.expect(2, "drain", "nowhere", lw=lw, text="nowhere:7420")
        outcomes.expect(0, "drain", one, lw=lw)
        outcomes.expect(1, "drain", two, lw=lw, text="no other shard can take over")
        shards.redis.pause()
        outcomes.expect(3, "why", "flights", "--answer-within", "2s", lw=lw)
        shards.redis.resume()


def test_a_command_that_does_not_exist_is_told_with_what_is_near(outcomes: Outcomes) -> None:
    for typed in ("sttaus", "get"):
        outcomes.expect(2, typed, text=f"there is no command '{typed}': did you mean status?")


def test_watch_in_a_pipe_tells_once_of_silence_and_once_of_its_end(lw: lowwater.Client, server: Serving) -> None:
    command = [
        *(sys.executable, "-m", "lowwater.cli", "watch", "flights", "--address", server.address, "--answer-within"),
        "1s",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert "flights" in watching.stdout.readline()
        server.kill()
        line = watching.stderr.readline()
        assert line.startswith("lowwater watch: no answer for "), line
        assert line.endswith(f" from {server.address}; what was shown last stands\n")
        server.start()
        assert watching.stderr.readline() == "lowwater watch: the authority answers again\n"
        lw.worker("flights").claim().finish()
        while "finished" not in watching.stdout.readline():
            pass
        watching.terminate()
        assert watching.stderr.read() == "", "each is said once"


def test_wait_tells_of_silence_and_waits_on(lw: lowwater.Client, server: Serving) -> None:
    command = [sys.executable, "-m", "lowwater.cli", "wait", "flights", "--until", "finished"]
    with subprocess.Popen(
        [*command, "--address", server.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stdout is not None
        assert waiting.stderr is not None
        server.kill()
        line = waiting.stderr.readline()
        assert line.startswith("lowwater wait: no answer for "), line
        assert line.endswith(f" from {server.address}; still waiting\n")
        server.start()
        lw.worker("flights").claim().finish()
        assert waiting.stdout.readline() == "flights is finished\n"


def test_to_be_told_to_stop_twice_is_no_traceback(lw: lowwater.Client) -> None:
    """`timeout` does this: it tells its command and then the whole group. Here the second one comes while Python ends."""
    program = (
        "import atexit, os, signal, sys, lowwater_command;"
        "atexit.register(os.kill, os.getpid(), signal.SIGTERM); sys.exit(lowwater_command.main())"
    )
    command = [sys.executable, "-c", program, "watch", "--address", lw.settings.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert watching.stdout.readline()
        watching.terminate()
        assert watching.stderr.read() == ""
    assert watching.returncode == -signal.SIGTERM, "which is 143 to a shell"


def test_a_reader_that_leaves_ends_a_command_quietly(lw: lowwater.Client, server: Serving) -> None:
    """A reader such as head leaves when it has had enough; the command ends though nothing moves any more."""
    reader, here = os.pipe()
    command = [sys.executable, "-m", "lowwater.cli", "watch"]
    environment = {**os.environ, "LOWWATER_ADDRESS": server.address}
    with (
        os.fdopen(here, "wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True, env=environment) as process,
    ):
        while b"ledger" not in os.read(reader, 1 << 16):
            pass
        os.close(reader)
        output.close()
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (128 + signal.SIGPIPE, "")


def test_closed_streams_change_no_exit_code(lw: lowwater.Client, server: Serving) -> None:
    command = [sys.executable, "-m", "lowwater.cli", "complete", "flights", "--until", "2100-01-01T00:00Z"]
    ran = f"{shlex.join([*command, '--address', server.address])} <&- >&- 2>&-"
    assert subprocess.run(ran, shell=True, check=False, capture_output=True).returncode == 1


def test_a_proxy_of_the_environment_is_no_way_to_this_machine(lw: lowwater.Client, server: Serving) -> None:
    """No process listens at the proxy. Another address is looked for behind it, and the error names the variable."""
    environment = {**os.environ, "http_proxy": "http://user:secret@127.0.0.1:1", "no_proxy": ""}
    command = [sys.executable, "-m", "lowwater.cli", "status", "--answer-within", "2", "--address"]
    assert subprocess.run([*command, server.address], env=environment, check=False).returncode == 0
    away = subprocess.run([*command, "lowwater.invalid:7420"], env=environment, check=False, capture_output=True)
    assert away.returncode == 3
    assert b"gRPC goes through the proxy of http_proxy: name the host in no_proxy" in away.stderr
    assert b"secret" not in away.stderr


def test_an_answer_that_cannot_be_written_is_an_error(lw: lowwater.Client, server: Serving) -> None:
    command = [sys.executable, "-m", "lowwater.cli", "status", "--address", server.address]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "lowwater status: the answer cannot be written: No space left on device\n"
