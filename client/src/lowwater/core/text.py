"""Words for times, keys and ranges, and safe forms of names that others chose."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

from lowwater.views import RangeState, RangeView, WatermarkView
from lowwater.watermark import Watermark

__all__ = [
    "clock_time",
    "counted",
    "describe_holder",
    "describe_key",
    "describe_owner",
    "describe_range",
    "did_you_mean",
    "duration",
    "lag",
    "near",
    "on_one_line",
    "without_passwords",
    "without_secrets",
]

_DAY = 86_400_000_000

_MOST_NEAR: Final = 3
"""Number of names that are offered for one that does not exist."""

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

_HDFS: Final = r"""(?<=hdfs:)//[^\s:/?#"'@]+:\d{1,5}[/?#,]"""
"""Host and port of an HDFS URL, which has no password. In any other URL such a port may be the
beginning of one."""

_PASSWORD: Final = re.compile(
    rf"(?P<scheme>\b[a-z][a-z0-9+.-]*:(?!{_HDFS})//)(?P<user>[^\s:/@]*):[^\s\"']+@", re.IGNORECASE
)
"""User and password of a URL, the password up to the last @, because some are written without the
necessary escapes."""

_PASSWORD_OPTION: Final = re.compile(r"(?P<name>[?&][^?&=\s]*password=)[^&\s]+", re.IGNORECASE)
"""Password as an option of a URL, such as ssl_password."""

_MOST_CHARACTERS: Final = 2000
"""Most characters of an error's first line that are searched. A plan in one line may have
millions."""

_USER: Final = re.compile(rf"""(?!{_HDFS})//(?:[^\s:/?#"'@]*:[^\s"']+|[^\s/?#"']+)@""")
"""User and password of a URL, up to the last @, because some passwords lack the necessary
escapes."""

_SECRET: Final = re.compile(
    r"""((?:passw|pwd|passphrase|secret|token|credential|authorization)[\w.-]*|key|signature|\bsig)"""
    r"""([\\"']*\s*[=:]+\s*)(?!\*\*\*)(?:(?:bearer|basic)\s+)?("[^"]*"?|'[^']*'?|[^\s&]+)""",
    re.IGNORECASE,
)
"""End of a name whose value is secret, the separator, and the value."""


def near(name: str, names: Collection[str]) -> tuple[str, ...]:
    """Return similar names, the best first; the namespace may be the mistake.

    >>> near("flihgts", ["flights"]), near("ledger", ["prod/ledger"]), near("x", ["hourly"])
    (('flights',), ('prod/ledger',), ())
    """
    spelt: dict[str, dict[str, None]] = {}
    for full_name in names:
        for part in (full_name, full_name.rpartition("/")[2]):
            spelt.setdefault(part.lower(), {})[full_name] = None
    matches: dict[str, None] = {}
    for part in (name, name.rpartition("/")[2]):
        for close in get_close_matches(part.lower(), spelt, _MOST_NEAR):
            matches.update(spelt[close])
    return tuple(matches)[:_MOST_NEAR]


def did_you_mean(name: str, names: Collection[str], before: str = "; ") -> str:
    """Return a question that offers similar names, after ``before``; empty when none is similar.

    >>> did_you_mean("flihgts", ["flights", "weather"])
    '; did you mean flights?'
    """
    offered = near(name, names)
    return f"{before}did you mean {' or '.join(offered)}?" if offered else ""


def on_one_line(text: str) -> str:
    r"""Return a foreign text without line ends and terminal controls, for terminals and logs.

    >>> on_one_line("exec-7 Zürich"), on_one_line("exec\n\x1b[2J")
    ('exec-7 Zürich', 'exec\\n\\x1b[2J')
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def without_passwords(text: str) -> str:
    """Return a text without the passwords of the URLs in it.

    >>> without_passwords("rediss://lowwater:pa:ss@redis:6379/0 does not answer")
    'rediss://lowwater:***@redis:6379/0 does not answer'
    >>> without_passwords("rediss://lowwater:12345/w@redis:6379/0, rediss://lowwater:7/Kx9@redis:6379/0")
    'rediss://lowwater:***@redis:6379/0, rediss://lowwater:***@redis:6379/0'
    """
    return _PASSWORD_OPTION.sub(r"\g<name>***", _PASSWORD.sub(r"\g<scheme>\g<user>:***@", text))


def without_secrets(line: str) -> str:
    """Return a line of an error without the secrets in it, shortened if it is very long.

    A secret is recognised by its place in a URL, or by the name before it.

    >>> without_secrets("no answer from postgres://etl:p@ss/w@db:5432/x?sslkey=k&a=1")
    'no answer from postgres://***@db:5432/x?sslkey=***&a=1'
    >>> without_secrets("postgres://etl:9?x@db:5432/x hdfs://host:8020/v@2")
    'postgres://***@db:5432/x hdfs://host:8020/v@2'
    >>> without_secrets("fs.s3a.secret.key=a/b+c refused; {'api_token': 'Bearer x'} of file:///in")
    "fs.s3a.secret.key=*** refused; {'api_token': ***} of file:///in"
    >>> without_secrets("Password: 'a b', {'api_token': ***, 'rows': 5}")  # partly hidden by Spark
    "Password: ***, {'api_token': ***, 'rows': 5}"
    >>> len(without_secrets(999 * "column " + "//user:pass@host"))
    1994
    """
    if len(line) > _MOST_CHARACTERS:
        # Half a word may be a user whose @ is cut off.
        line = line[:_MOST_CHARACTERS].rpartition(" ")[0]
    return _SECRET.sub(r"\1\2***", _USER.sub("//***@", line))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "key range"), counted(20_000, "key range")
    ('1 key range', '20000 key ranges')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """Return a length of time in at most two units.

    >>> duration(0.05), duration(0.9999), duration(61), duration(7_384), duration(-2)
    ('50 ms', '1 s', '1 min 1 s', '2 h 3 min', '-2 s')
    """
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.9995:
        return f"{round(seconds * 1_000)} ms"
    rest = round(seconds)
    for i, (size, unit) in enumerate(_UNITS):
        if rest >= size:
            whole, rest = divmod(rest, size)
            finer = f" {rest // _UNITS[i + 1][0]} {_UNITS[i + 1][1]}" if i + 1 < len(_UNITS) else ""
            return f"{whole} {unit}" + ("" if finer.startswith(" 0 ") else finer)
    return "0 s"


def lag(watermark: Watermark, now_micros: int) -> str:
    """Return in words how far a watermark lags a processing time; "-" when it has no time."""
    return "-" if watermark.unknown or watermark.finished else duration((now_micros - watermark.micros) / 1e6)


def clock_time(watermark: Watermark, now_micros: int) -> str:
    """Return an event time for people, rounded down to the second.

    The day is left out when it is that of ``now_micros``.

    >>> clock_time(Watermark(1_357_740_000_000_000), 1_357_743_600_000_000)
    '14:00 UTC'
    >>> clock_time(Watermark(1_357_740_007_900_000), 1_357_843_600_000_000)
    '2013-01-09 14:00:07 UTC'
    """
    try:
        time = watermark.datetime()
    except ValueError:  # unknown, finished, or beyond the calendar
        return str(watermark)
    day = "" if watermark.micros // _DAY == now_micros // _DAY else f"{time:%Y-%m-%d} "
    return f"{day}{time:%H:%M:%S}".removesuffix(":00") + " UTC"


def describe_key(key: bytes) -> str:
    """Return a key as text when all of it is printable ASCII, else in hexadecimal.

    >>> describe_key(b"N14228"), describe_key(bytes([0x40, 0]))
    ('N14228', '0x4000')
    """
    if all(0x21 <= byte <= 0x7E for byte in key) and not key.startswith(b"0x"):
        return key.decode("ascii")
    return f"0x{key.hex()}"


def describe_range(start: bytes, end: bytes) -> str:
    """Return a half-open key range in words: both ends as text, or both in hexadecimal.

    >>> describe_range(b"", b""), describe_range(b"A", b"N"), describe_range(b"@", bytes([0x80]))
    ('all keys', '[A, N)', '[0x40, 0x80)')
    >>> describe_range(b"A", b"")
    '[A, ..)'
    """
    if not start and not end:
        return "all keys"
    names = [describe_key(key) if key else ".." for key in (start, end)]
    if any(name.startswith("0x") for name in names):
        names = [f"0x{key.hex()}" if key else ".." for key in (start, end)]
    return f"[{names[0]}, {names[1]})"


def describe_owner(view: RangeView) -> str:
    """Return the owner of a range in words."""
    worker = on_one_line((view.worker or "an unnamed worker") + (f" on {view.host}" if view.host else ""))
    match view.state:
        case RangeState.NEVER_CLAIMED:
            return "which no worker ever claimed"
        case RangeState.UNOWNED if view.remarks.ended:
            return f"left by {worker}"
        case RangeState.UNOWNED:
            return f"which nobody owns since {worker} left it"
        case RangeState.RETIRED:
            return "retired"
        case _:
            return f"owned by {worker}"


def describe_holder(view: WatermarkView, counted: bool = True) -> str:
    """Return the holder of a computation's low watermark in a few words."""
    if not view.registered:
        return f"{view.computation} (not registered)"
    if not counted:
        return f"{view.computation} (in incarnation {view.incarnation}, which this claim does not read)"
    if view.holder is None:
        return view.computation
    return f"{view.computation} {describe_range(view.holder.start, view.holder.end)}, {describe_owner(view.holder)}"
