"""What the help of each command shows below its arguments."""

from __future__ import annotations

from typing import Final

__all__ = ["EXAMPLES", "TOP"]

TOP: Final = """\
examples:
  lowwater serve --data /var/lib/lowwater    run the authority
  lowwater status                            where everything stands
  lowwater watch                             the same, live
  lowwater why hourly                        who holds it, walking upstream
  lowwater history hourly --last 48          when each of the last hours was complete
  lowwater wait hourly --until 2013-01-09T14:00Z --timeout 1h
  lowwater complete hourly --until 2013-01-09T14:00Z && publish-report
  lowwater journal copy /var/lib/lowwater redis://redis:6379#orders
  lowwater access check access.toml          who may do what
  lowwater shards                            who serves what
  lowwater drain lowwater-2:7420 && stop-it  have a shard hand over what it serves
  lowwater tasks take flights daily          work that is to be done once
  lowwater completion bash                   TAB for commands, options and names

The authority's address comes from --address, else from LOWWATER_ADDRESS, else
it is localhost:7420; of many shards name one or more, with commas between. An
address without a port means 7420. An access token comes from LOWWATER_TOKEN,
or from the file LOWWATER_TOKEN_FILE, which may change while a command runs, and
wins if both are set;
certificates from --ca, --cert and --key, or from the files that LOWWATER_CA,
LOWWATER_CERT and LOWWATER_KEY name. Times are ISO 8601 with a time
zone. "unknown" means that nothing was promised yet, "finished" that nothing will
ever come.

Exit codes: 0 done, 1 not yet, 2 error, 3 nobody could tell, because the
authority is away; docs/cli.md has them by command. Each command has a --help of
its own.
"""

_STATUS: Final = """\
examples:
  lowwater status
  lowwater status hourly daily
  lowwater status --json --address lowwater-0:7420,lowwater-1:7420
  lowwater status --names                    the names alone, a line each
  lowwater status --namespace prod           only what is in the namespace
  lowwater status hourly --slices            with its slices, the worst on top

The worst is on top: what nobody works on, then what is furthest behind. A
computation that is cut has one line, with the number of its slices and the
slowest of them; --slices has a line for each.
NO_COLOR in the environment turns colours off.
"""

_WATCH: Final = """\
examples:
  lowwater watch
  lowwater watch hourly enriched
  lowwater watch --json                      a JSON object per change

On a terminal it stays until q: the furthest behind is on top, with who holds
it. Arrows or j and k select, Enter says why, / filters, s sorts differently, x
shows the slices of what is cut, as --slices does from the start.
NO_COLOR in the environment turns colours off.
"""

_WHY: Final = """\
example:
  $ lowwater why hourly
  hourly is at 13:02 UTC, 58 min behind: held by enriched [0x40, 0x80) on exec-7 (host-3), silent for 38 min.
  hourly stands at 2013-01-09T13:02:00Z, 58 min behind the clock; that is as far as its input enriched allows.
  enriched stands at 2013-01-09T13:02:00Z, 58 min behind the clock, 57 min behind its input flights, which stands at 2013-01-09T13:59:00Z: held by [0x40, 0x80) at 2013-01-09T13:02:00Z, owned by exec-7 on host-3, silent for 38 min.

The root cause comes first, then the way to it. Exits 0 when that could be
said, 3 when the authority cannot tell.
"""

_WAIT: Final = """\
examples:
  lowwater wait hourly --until 2013-01-09T14:00Z && publish-report
  lowwater wait hourly --until 2013-01-09T14:00Z --timeout 1h
  lowwater wait flights --until finished
  lowwater wait hourly --until 2013-01-09T14:00Z --even-unregistered

A name that nobody has registered is an error, and said at once: it may be
misspelt. --even-unregistered waits for it.
"""

_COMPLETE: Final = """\
examples:
  lowwater complete hourly --until 2013-01-09T14:00Z && publish-report
  lowwater complete hourly --until 2013-01-09T14:00Z --json
  lowwater complete hourly --from 2013-01-09T13:00Z --to 2013-01-09T14:00Z

With --from and --to it says of an interval what is missing, and who holds it:
the computation's key ranges that are before the end of the interval, and those
of all that is upstream of it. Nobody knows of single holes: a key range is
complete to its watermark, and not complete from there on.
"""

_PUBLISH: Final = """\
examples:
  lowwater publish hourly --every 1h --from 2013-01-09T00:00Z --cursor /var/lib/lowwater-publish/hourly --to file:/data/hourly/%Y-%m-%d/%H/_SUCCESS
  lowwater publish hourly --every 1d --from 2013-01-01T00:00Z --cursor hook --to https://ci.example/hooks/daily
  lowwater publish hourly --every 1h --from 2013-01-09T00:00Z --cursor here --to https://ci.example/hooks/hourly --once

Each interval is told once, in order, when it is complete by the exact low
watermark. A target that does not take it is asked again, with longer and
longer pauses, and only then the cursor moves. After a crash the last one may
be told a second time: a marker is the same file, a webhook has the same id.
It stops when the computation is reset: what it has told is made anew then.
docs/schedule.md has the rest.
"""

_RANGES: Final = """\
examples:
  lowwater ranges enriched
  lowwater ranges enriched --below 2013-01-09T14:00Z --limit 100
"""

_HISTORY: Final = """\
example:
  $ lowwater history hourly --since 2013-01-09T09:00Z
  hourly, in steps of 1 h, UTC
  STEPS                      COMPLETE AT           AFTER END
  2013-01-09 09:00 to 10:00  2013-01-09T10:00:35Z  35 s         #
  2013-01-09 10:00 to 13:00  2013-01-09T13:00:40Z  40 s to 2 h  ############
  2013-01-09 13:00 to 14:00  2013-01-09T14:00:38Z  38 s         #

Each hour counts as complete from the moment at which the authority published
a low watermark at its end or later; AFTER END is how long that was after its
end, for several hours at once of the newest and of the oldest of them. The
bar is as long as the oldest was late. The newest 10,000 lines are kept, also
those of incarnations that a reset has ended. The step is chosen at the
registration, with history_step.
"""

_RESET: Final = """\
examples:
  lowwater reset hourly
  lowwater reset hourly --yes --json

A new incarnation starts at unknown. All workers of it, and of all that reads
it, must claim again, and whoever waits for it is told.
"""

_RETIRE: Final = """\
examples:
  lowwater retire enriched --start 0x40 --end 0x80
  lowwater retire enriched --start N --end '' --force
"""

_SET_INPUTS: Final = """\
examples:
  lowwater set-inputs hourly enriched corrections
  lowwater set-inputs --namespace prod hourly enriched

The inputs are named in full: what is not named is not read any more. It is
refused while a new input is behind what the computation has published; reset
the computation then. What was published stays, and stands still until the
workers have claimed again and folded the new inputs.
"""

_DROP: Final = """\
examples:
  lowwater drop old-report
  lowwater drop old-report --force

For a job that is gone for good: its watermarks, metrics and alerts end. It is
refused while another computation reads it, which is named; change its inputs
or drop it first. A worker that was killed owns its key ranges still, and only
you know that it is gone: that takes --force, and should it report once more
it is refused. The name may be registered again: that begins the next
incarnation.
"""

_SHARDS: Final = """\
example:
  $ lowwater shards
  SHARD            STATE     SILENT  SERVES
  lowwater-0:7420  serving   120 ms  2       flights, weather
  lowwater-1:7420  serving   80 ms   1       hourly
  lowwater-2:7420  draining  200 ms  1       daily
  hourly is pinned to lowwater-1:7420

SILENT is how long ago the store has heard of a shard. One that is silent for
longer than its --dead-after loses what it serves to the others, and is not
listed any more.
"""

_DRAIN: Final = """\
example:
  $ lowwater drain lowwater-2:7420
  lowwater-2:7420 still serves 2: daily, monthly
  lowwater-2:7420 serves nothing any more

Nothing stands still meanwhile: each computation is served where it was until
another shard has taken it over. To stop a shard with SIGTERM does the same; a
shard that is started again at that address does not drain.
"""

_PIN: Final = """\
examples:
  lowwater pin hourly lowwater-1:7420
  lowwater pin hourly --off

While no shard has that address any other serves the computation, and hands it
over when one has it again.
"""

_TASKS: Final = """\
a day is closed once, when it is complete:
  lowwater tasks create-group flights daily --every 1d --start 2013-01-01T00:00Z
  lowwater tasks take flights daily --wait 1h > lease.json
  close=$(lowwater tasks output lease.json close.csv)
  mkdir -p "$(dirname "$close")" && close-the-day < lease.json > "$close"
  lowwater tasks done lease.json --output "$close"

A task is made in the step in which the low watermark passes the end of its
interval. Whoever takes it has a lease; when that has run out, others are
offered the task, and the first commit that names the newest lease counts. So
a worker that was thought dead is refused, and its output, which has a name of
its own, is in nobody's way. docs/tasks.md has the rest.
"""

_SLICES: Final = """\
examples:
  lowwater slices list hourly
  lowwater slices split hourly~3 --at 0x6000

A computation is cut into slices when it is registered. Each is served by a
shard, and a slice that has become too large for one is cut in two.
"""

_SLICES_LIST: Final = """\
example:
  $ lowwater slices list hourly
  SLICE     FIRST KEY  FIRST KEY AFTER
  hourly~0  -          0x80
  hourly~1  0x80       0xc0
  hourly~2  0xc0       -                taken over from hourly~1

A slice that is still taken over from another one grants no keys yet, and the
watermark stands still.
"""

_SLICES_SPLIT: Final = """\
examples:
  lowwater slices split hourly~3 --at 0x6000
  lowwater slices split hourly~3 --at N14228 --json

The keys from there on are those of a new slice, with all that is known of
them: no watermark moves. Their workers lose them, and claim again. One slice
of a computation is cut at a time. Slices are not made one again.
"""

_TASKS_LIST: Final = """\
examples:
  lowwater tasks list flights                      the groups
  lowwater tasks list flights --group daily        the tasks of one
  lowwater tasks list flights --group daily --state ready --json
"""

_TASKS_CREATE_GROUP: Final = """\
examples:
  lowwater tasks create-group flights daily --every 1d --start 2013-01-01T00:00Z
  lowwater tasks create-group flights repairs --lease 10m

With --every, tasks are made as the low watermark passes the intervals, once
each; those that it has passed already are made at once. When the computation
has finished, what is left is one last task without an end.
"""

_TASKS_CONFIGURE: Final = """\
example:
  lowwater tasks configure flights daily --configuration close-v2 --version 1

What is under way was begun with the old configuration, and counts no more.
"""

_TASKS_CREATE: Final = """\
example:
  lowwater tasks create flights repairs N14228 --at 2013-01-09T14:00Z --payload late
"""

_TASKS_TAKE: Final = """\
example:
  lowwater tasks take flights daily --wait 1h > lease.json

The lease is one line of JSON, with which `output`, `renew`, `done` and
`release` go on, on any host. "at_micros" and "until_micros" are the interval.
"""

_TASKS_OUTPUT: Final = """\
example:
  lowwater tasks output lease.json close.csv

It asks nobody: the name has the version and the nonce of the lease in it.
"""

_TASKS_RENEW: Final = """\
example:
  lowwater tasks renew lease.json
"""

_TASKS_DONE: Final = """\
examples:
  lowwater tasks done lease.json --output "$close"
  lowwater tasks done lease.json --output "$close" --digest "$(sha256sum < "$close")"

It may be repeated. Exits 2 when another worker has the task: drop what was
made then.
"""

_TASKS_RELEASE: Final = """\
example:
  lowwater tasks release lease.json
"""

_COMPLETION: Final = """\
examples:
  lowwater completion bash > ~/.local/share/bash-completion/completions/lowwater
  lowwater completion zsh > ~/.zfunc/_lowwater
  lowwater completion fish > ~/.config/fish/completions/lowwater.fish

Names of computations are completed too, when an authority answers within a
second at LOWWATER_ADDRESS.
"""

_HOT: Final = """\
examples:
  lowwater hot counts
  lowwater hot counts --json

A range that is ruled by one key cannot be spread by a cut.
"""

_SPLIT: Final = """\
examples:
  lowwater split counts 0x4000
  lowwater split counts 0x4000 --into 4
  lowwater split counts 0x4000 --at 0x4400

Without more it is cut in two, where the rows of the last micro-batch are
halved as well as can be. A tracked stage of Spark follows between two
micro-batches; no record is lost or counted twice.
"""

_MERGE: Final = """\
example:
  lowwater merge counts 0x4000 0x4c00
"""

_MOVE: Final = """\
examples:
  lowwater move counts 0x4000 2
  lowwater move counts 0x4000 any
"""

EXAMPLES: Final = {
    "status": _STATUS,
    "watch": _WATCH,
    "why": _WHY,
    "wait": _WAIT,
    "complete": _COMPLETE,
    "publish": _PUBLISH,
    "ranges": _RANGES,
    "history": _HISTORY,
    "reset": _RESET,
    "retire": _RETIRE,
    "hot": _HOT,
    "split": _SPLIT,
    "merge": _MERGE,
    "move": _MOVE,
    "set-inputs": _SET_INPUTS,
    "drop": _DROP,
    "shards": _SHARDS,
    "drain": _DRAIN,
    "pin": _PIN,
    "tasks": _TASKS,
    "slices": _SLICES,
    "slices list": _SLICES_LIST,
    "slices split": _SLICES_SPLIT,
    "tasks list": _TASKS_LIST,
    "tasks create-group": _TASKS_CREATE_GROUP,
    "tasks configure": _TASKS_CONFIGURE,
    "tasks create": _TASKS_CREATE,
    "tasks take": _TASKS_TAKE,
    "tasks output": _TASKS_OUTPUT,
    "tasks renew": _TASKS_RENEW,
    "tasks done": _TASKS_DONE,
    "tasks release": _TASKS_RELEASE,
    "completion": _COMPLETION,
}
"""By command."""
