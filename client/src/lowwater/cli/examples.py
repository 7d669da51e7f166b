"""The texts below the arguments in the help of each command."""

from __future__ import annotations

from typing import Final

__all__ = ["EXAMPLES", "TOP"]

TOP: Final = """\
examples:
  lowwater demo                              a small living pipeline, to ask about
  lowwater serve --data /var/lib/lowwater    run the authority
  lowwater status                            the watermark of each computation
  lowwater watch                             the same, live
  lowwater why hourly                        who holds it, walking upstream
  lowwater history hourly --last 48          when each of the last hours was complete
  lowwater promise sales --until 2013-01-09T14:00Z
  lowwater wait hourly --until 2013-01-09T14:00Z --timeout 1h
  lowwater complete hourly --until 2013-01-09T14:00Z && publish-report
  lowwater journal copy /var/lib/lowwater redis://redis:6379#orders
  lowwater access check access.toml          who may do what
  lowwater shards                            which shard serves what
  lowwater drain lowwater-2:7420 && stop-it  make a shard hand over what it serves
  lowwater tasks take flights daily          work that is to be done once
  lowwater completion bash                   TAB for commands, options and names

The authority's address comes from --address, else from LOWWATER_ADDRESS, else
it is localhost:7420. If there are many shards, name one or more, with commas
between. An address without a port means 7420. An access token comes from the
file LOWWATER_TOKEN_FILE, which may change while a command runs, else from
LOWWATER_TOKEN; certificates come from --ca, --cert and --key, or from the files
that LOWWATER_CA, LOWWATER_CERT and LOWWATER_KEY name. Times are ISO 8601 with a
time zone. "unknown" means that nothing was promised yet, "finished" that
nothing more will come. NO_COLOR in the environment turns colours off.

Exit codes: 0 done, 1 not yet, 2 error, 3 the authority did not answer, so
nobody could tell; docs/reference/cli.md has them by command. Each command has a --help of
its own.
"""

EXAMPLES: Final = {
    "status": """\
examples:
  lowwater status
  lowwater status hourly daily
  lowwater status --json --address lowwater-0:7420,lowwater-1:7420
  lowwater status --names                    only the names, a line each
  lowwater status --namespace prod           only computations of this namespace
  lowwater status hourly --slices            with its slices, the worst on top

The worst is on top: computations that no worker works on, then those that are
furthest behind. A computation that is cut has one line, with the number of its
slices and the slowest of them; --slices adds a line for each slice.
""",
    "watch": """\
examples:
  lowwater watch
  lowwater watch hourly enriched
  lowwater watch --json                      a JSON object per change

On a terminal the command runs until q: the furthest behind is on top, with who
holds it. Arrows or j and k select, Enter says why, / filters, s changes the
order, x shows slices, as --slices does from the start.
""",
    "why": """\
example:
  $ lowwater why hourly
  hourly is at 13:02 UTC, 58 min behind: held by enriched [0x40, 0x80) on exec-7 (host-3), silent for 38 min.
  hourly stands at 2013-01-09T13:02:00Z, 58 min behind the clock; that is as far as its input enriched allows.
  enriched stands at 2013-01-09T13:02:00Z, 58 min behind the clock, 57 min behind its input flights, which stands at 2013-01-09T13:59:00Z: held by [0x40, 0x80) at 2013-01-09T13:02:00Z, owned by exec-7 on host-3, silent for 38 min.

The root cause comes first, then the way to it. The command exits with 3 if the
authority cannot tell.
""",
    "promise": """\
examples:
  upload 13 && lowwater promise sales --until 2013-01-09T14:00Z
  upload 13 && lowwater promise sales --until 2013-01-09T14:00Z --after 2013-01-09T13:00Z
  lowwater promise sales --until finished

For a source that a script or a job by cron brings in: promise when the data is
where its readers look, and durable. The source is registered at the first
promise. A promise cannot be taken back. --after refuses one that would leap
over an hour that was not promised, for example because its upload failed.
""",
    "wait": """\
examples:
  lowwater wait hourly --until 2013-01-09T14:00Z && publish-report
  lowwater wait hourly --until 2013-01-09T14:00Z --timeout 1h
  lowwater wait flights --until finished
  lowwater wait hourly --until 2013-01-09T14:00Z --even-unregistered

A name that is not registered ends the command at once with an error, because
the name may be misspelt. --even-unregistered waits for its registration.
""",
    "complete": """\
examples:
  lowwater complete hourly --until 2013-01-09T14:00Z && publish-report
  lowwater complete hourly --until 2013-01-09T14:00Z --json
  lowwater complete hourly --from 2013-01-09T13:00Z --to 2013-01-09T14:00Z

--from and --to ask about an interval. The answer lists what is missing and who
holds it: key ranges below the end of the interval, of the computation and of
everything upstream of it. A key range is complete up to its watermark; single
holes beyond it are not known.
""",
    "publish": """\
examples:
  lowwater publish hourly --every 1h --from 2013-01-09T00:00Z --cursor /var/lib/lowwater-publish/hourly --to file:/data/hourly/%Y-%m-%d/%H/_SUCCESS
  lowwater publish hourly --every 1d --from 2013-01-01T00:00Z --cursor hook --to https://ci.example/hooks/daily
  lowwater publish hourly --every 1h --from 2013-01-09T00:00Z --cursor here --to https://ci.example/hooks/hourly --once

Each interval is told once, in order, when the exact low watermark has passed
it. If the target does not take an interval, the command tries again, with
longer and longer pauses; the cursor moves only after the target has taken it.
After a crash the last interval may be told a second time: as the same file, or
as a webhook with the same id. When the computation is reset, the command stops,
because intervals that were told are computed anew. docs/operate/schedule.md says more.
""",
    "ranges": """\
examples:
  lowwater ranges enriched
  lowwater ranges enriched --below 2013-01-09T14:00Z --limit 100
""",
    "history": """\
example:
  $ lowwater history hourly --since 2013-01-09T09:00Z
  hourly, in steps of 1 h, UTC
  STEPS                      COMPLETE AT           AFTER END
  2013-01-09 09:00 to 10:00  2013-01-09T10:00:35Z  35 s         #
  2013-01-09 10:00 to 13:00  2013-01-09T13:00:40Z  40 s to 2 h  ############
  2013-01-09 13:00 to 14:00  2013-01-09T14:00:38Z  38 s         #

An hour is complete when the authority has published a low watermark at its end
or later. AFTER END is how much later that was; a line for several hours shows
the newest and the oldest of them. The bar is as long as the oldest was late.
The newest 10,000 lines are kept, also those of incarnations that a reset has
ended. history_step chooses another step at the registration.
""",
    "advise": """\
examples:
  lowwater advise hourly --progress events.jsonl --window 1h --delay 2h
  lowwater advise hourly --progress events.jsonl --picture advise.svg --json
  zstd -dc eventlog.zstd | lowwater advise hourly --progress - --query by_hour

The files have the progress of a query that Spark ran over the same data: its
event log, or lines of query.lastProgress.json. Spark reports the least, mean
and greatest event time of each batch, so a share of lost rows lies between two
bounds. Without files only the waits are known, by the history of the
computation. docs/concepts/lateness-budget.md has an example.
""",
    "reset": """\
examples:
  lowwater reset hourly
  lowwater reset hourly --yes --json

A new incarnation starts at unknown. All workers of the computation, and of all
that read it, must claim again. Programs that wait for the computation are told.
""",
    "retire": """\
examples:
  lowwater retire enriched --start 0x40 --end 0x80
  lowwater retire enriched --start N --end '' --force
""",
    "hot": """\
examples:
  lowwater hot counts
  lowwater hot counts --json

If one key rules a range, no cut can spread the range.
""",
    "split": """\
examples:
  lowwater split counts 0x4000
  lowwater split counts 0x4000 --into 4
  lowwater split counts 0x4000 --at 0x4400

Without --into and --at the range is cut in two parts that had about the same
number of rows in the last micro-batch. A tracked stage of Spark applies the cut
between two micro-batches; no record is lost or counted twice.
""",
    "merge": """\
example:
  lowwater merge counts 0x4000 0x4c00
""",
    "move": """\
examples:
  lowwater move counts 0x4000 2
  lowwater move counts 0x4000 any
""",
    "set-inputs": """\
examples:
  lowwater set-inputs hourly enriched corrections
  lowwater set-inputs --namespace prod hourly enriched

Name all inputs: the computation reads no others from then on. The change is
refused while a new input is behind what the computation has published; reset
the computation then. The published watermark stays, and stands still until the
workers have claimed again and folded the new inputs.
""",
    "drop": """\
examples:
  lowwater drop old-report
  lowwater drop old-report --force
  lowwater drop old-report --yes             in a script, without a question

For a job that is gone for good: its watermarks, metrics and alerts end. The
drop is refused while another computation, which the error names, reads this
one; change the inputs of that one or drop it first. A worker that was killed
still owns its key ranges, and only you know that it is gone: use --force. If
the worker reports once more, its report is refused. A new registration of the
name begins the next incarnation.
""",
    "shards": """\
example:
  $ lowwater shards
  SHARD            STATE     SILENT  SERVES
  lowwater-0:7420  serving   120 ms  2       flights, weather
  lowwater-1:7420  serving   80 ms   1       hourly
  lowwater-2:7420  draining  200 ms  1       daily
  hourly is pinned to lowwater-1:7420

SILENT is the time since the store has heard of a shard. A shard that is silent
for longer than its --dead-after loses what it serves to the others, and leaves
the list.
""",
    "drain": """\
example:
  $ lowwater drain lowwater-2:7420
  lowwater-2:7420 still serves 2: daily, monthly
  lowwater-2:7420 serves nothing any more

No watermark stands still meanwhile: the shard serves each computation until
another shard has taken it over. SIGTERM stops a shard in the same way. If a
shard starts again at that address, it does not drain.
""",
    "pin": """\
examples:
  lowwater pin hourly lowwater-1:7420
  lowwater pin hourly --off

While no shard has that address, another one serves the computation, and hands
it over when a shard has the address again.
""",
    "slices": """\
examples:
  lowwater slices list hourly
  lowwater slices split hourly~3 --at 0x6000

A computation is cut into slices when it is registered. A shard serves each
slice; a slice that has become too large for one shard is cut in two.
""",
    "slices list": """\
example:
  $ lowwater slices list hourly
  SLICE     FIRST KEY  FIRST KEY AFTER
  hourly~0  -          0x80
  hourly~1  0x80       0xc0
  hourly~2  0xc0       -                taken over from hourly~1

While a slice is being taken over from another one, it grants no keys, and the
watermark stands still.
""",
    "slices split": """\
examples:
  lowwater slices split hourly~3 --at 0x6000
  lowwater slices split hourly~3 --at N14228 --json

A new slice gets the keys from --at on, with their watermarks: none moves. The
workers of these keys lose them and claim again. Only one slice of a computation
is cut at a time. Slices cannot be merged.
""",
    "tasks": """\
a day is closed once, when it is complete:
  lowwater tasks create-group flights daily --every 1d --start 2013-01-01T00:00Z
  lowwater tasks take flights daily --wait 1h > lease.json
  close=$(lowwater tasks output lease.json close.csv)
  mkdir -p "$(dirname "$close")" && close-the-day < lease.json > "$close"
  lowwater tasks done lease.json --output "$close"

A task is made when the low watermark passes the end of its interval. A worker
takes it with a lease. When the lease has run out, the task is offered to other
workers, and only the newest lease can commit. So a worker that was thought dead
is refused, and its output, which has a name of its own, overwrites no other.
docs/operate/schedule.md says more.
""",
    "tasks list": """\
examples:
  lowwater tasks list flights                      the groups
  lowwater tasks list flights --group daily        the tasks of one group
  lowwater tasks list flights --group daily --state ready --json
""",
    "tasks create-group": """\
examples:
  lowwater tasks create-group flights daily --every 1d --start 2013-01-01T00:00Z
  lowwater tasks create-group flights repairs --lease 10m

With --every, one task is made for each interval that the low watermark passes;
tasks of intervals that it has passed already are made at once. When the
computation has finished, the rest becomes one last task without an end.
""",
    "tasks configure": """\
example:
  lowwater tasks configure flights daily --configuration close-v2 --version 1

Workers that began with the old configuration are refused when they commit.
""",
    "tasks create": """\
example:
  lowwater tasks create flights repairs N14228 --at 2013-01-09T14:00Z --payload late
""",
    "tasks take": """\
The lease is one line of JSON; `output`, `renew`, `done` and `release` take it
on any host. "at_micros" and "until_micros" are the interval.
""",
    "tasks output": """\
This command needs no authority: the name contains the version and the nonce of
the lease.
""",
    "tasks done": """\
examples:
  lowwater tasks done lease.json --output "$close"
  lowwater tasks done lease.json --output "$close" --digest "$(sha256sum < "$close")"

It may be repeated. If it exits with 2, another worker has the task: delete what
was made.
""",
    "completion": """\
examples:
  lowwater completion bash > ~/.local/share/bash-completion/completions/lowwater
  lowwater completion zsh > ~/.zfunc/_lowwater
  lowwater completion fish > ~/.config/fish/completions/lowwater.fish

Names of computations are completed too, when an authority answers within a
second at LOWWATER_ADDRESS.
""",
}
"""Epilog of the help, by command and action; a command that its usage explains has none."""
