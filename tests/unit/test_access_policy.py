"""An access file allows what a table here says; and every mistake in one is refused, with the place and the fix."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from lowwater_authority.access.policy import DEFAULT_LIMITS, Access, Action, Limits
from lowwater_authority.files.table import BadFile


def digest(token: str) -> str:
    return sha256(token.encode(errors="surrogateescape")).hexdigest()


ETL = digest("etl-token")
OPS = digest("ops-token")

GOOD = f"""
[[principal]]
name = "etl"
token_sha256 = ["{ETL}", "{digest("etl-next")}"]
certificates = ["spiffe://prod/etl", "etl.example"]
metrics = true
regions = ["eu", "US west"]
[[principal.allow]]
namespace = "flights"
report = ["enriched", "hour*"]
read = ["*"]
[[principal.allow]]
namespace = ""
read = ["plain"]

[[principal]]
name = "ops"
token_sha256 = ["{OPS}"]
page = true
[[principal.allow]]
namespace = "*"
operate = ["*"]

[limits]
streams = 10
calls_per_second = 2.5
ranges = 1_000_000
computations = 7
message_bytes = 67108864
"""

NAMES = [
    (namespace, name)
    for namespace in ("", "flights", "flight", "flightsx", "*", "other")
    for name in ("enriched", "enrichedx", "enriche", "hour", "hourly", "hou", "Hourly", "plain", "*", "hour*", "")
]

ALLOWED = {
    (Action.REPORT, "flights", "enriched"),
    (Action.REPORT, "flights", "hour"),
    (Action.REPORT, "flights", "hourly"),
    (Action.REPORT, "flights", "hour*"),  # which nobody can register
    (Action.READ, "", "plain"),
} | {(Action.READ, "flights", name) for _, name in NAMES}


def access(text: str = GOOD) -> Access:
    return Access.parse(text.encode(), "access.toml")


@pytest.mark.parametrize("action", list(Action))
def test_a_principal_may_do_what_a_rule_names_and_nothing_else(action: Action) -> None:
    etl = access().named("etl")
    assert etl is not None
    assert {(action, *name) for name in NAMES if etl.may(action, *name)} == {one for one in ALLOWED if one[0] is action}


def test_everything_means_every_namespace_and_the_one_without_a_name() -> None:
    ops = access().named("ops")
    assert ops is not None
    assert all(ops.may(Action.OPERATE, *name) for name in NAMES)
    assert not any(ops.may(action, *name) for name in NAMES for action in (Action.READ, Action.REPORT))
    assert ops.may_all(Action.OPERATE)
    assert not ops.may_all(Action.READ)


def test_a_token_is_known_by_its_hash_alone() -> None:
    access_ = access()
    who = {t: getattr(access_.whose(digest(t), 0.0), "name", None) for t in ("etl-token", "etl-next", "ops-token")}
    assert who == {"etl-token": "etl", "etl-next": "etl", "ops-token": "ops"}
    for token in ("", " ", "etl-toke", "etl-token ", "ETL-TOKEN", ETL, OPS, "\udcff", "é"):
        assert access_.whose(digest(token), 0.0) is None, token


@pytest.mark.parametrize(
    ("written", "ends"),
    [
        ("2027-01-31", 1_801_353_600),
        ("2027-01-31T01:00:00", 1_801_357_200),
        ("2027-01-31T01:00:00.5+01:00", 1_801_353_600.5),
    ],
)
def test_a_token_with_a_date_counts_until_then(written: str, ends: float) -> None:
    both = token(f"sha256 = '{OPS}'\nexpires = {written}\n")
    [principal] = access(both).principals
    assert principal.ends is None, "the other token counts for ever"
    for now, name in ((ends - 0.001, "etl"), (ends, None)):
        assert getattr(access(both).whose(digest("ops-token"), now), "name", None) == name
        assert access(both).whose(digest("etl-token"), now) == principal
    [alone] = access(both.replace(f'["{ETL}"]', "[]")).principals
    assert alone.ends == ends
    [certified] = access(both.replace(f'["{ETL}"]', "[]\ncertificates = ['x']")).principals
    assert certified.ends is None


def test_a_certificate_is_known_by_one_of_its_names_exactly() -> None:
    access_ = access()
    assert [principal.name for principal in access_.certified(["else", "etl.example"])] == ["etl"]
    for names in ([], ["etl"], ["x.etl.example"], ["ETL.example"], ["spiffe://prod/etl/x"], ["spiffe://prod"]):
        assert access_.certified(names) == [], names


def test_flags_and_limits_are_what_was_written() -> None:
    file = access()
    etl, ops = file.principals
    assert (etl.page, etl.metrics, ops.page, ops.metrics) == (False, True, True, False)
    assert file.limits == Limits(10, 2.5, 1_000_000, 7, 67108864)
    assert access("").limits == Limits()
    assert file.limits.over(DEFAULT_LIMITS) == Limits(10, 2.5, 1_000_000, 7, 67108864, DEFAULT_LIMITS.all_computations)


def principal(more: str = "", name: str = '"etl"', tokens: str = f'["{ETL}"]') -> str:
    return f"\n[[principal]]\nname = {name}\ntoken_sha256 = {tokens}\n{more}"


def allow(lines: str) -> str:
    return principal(f"[[principal.allow]]\n{lines}")


def token(lines: str) -> str:
    return principal(f"[[principal.token]]\n{lines}")


BAD = {
    "no TOML": ("[[principal", "access.toml is not TOML", "correct it there"),
    "no UTF-8": ("\udcff", "access.toml is not UTF-8", "save it as UTF-8"),
    "unknown table": ("[principals]", "access.toml: principals is unknown", "principal, limits"),
    "no name": ("[[principal]]", "access.toml: principal[1].name is missing", "1 to 64 of"),
    "reserved name": (principal(name='"peer"'), "principal[1].name is 'peer', which the authority", "choose another"),
    "misspelt key": (principal("reed = true"), "principal[1].reed is unknown", "write one of name, token_sha256"),
    "the token itself": (principal("token = 'hush-hush'"), "[1].token is not a list of tables", "[[principal.token]]"),
    "a date as a text": (token(f"sha256='{OPS}'\nexpires='2027-01-31'"), "token[1].expires is '2027", "without quotes"),
    "one token in both": (token(f"sha256 = '{ETL}'"), "principal[1].token repeats a digest of this", "remove one"),
    "a token for its digest": (
        principal(tokens="['hush-hush']"),
        "principal[1].token_sha256[1] is malformed",
        "64 hex",
    ),
    "nobody": (principal(tokens="[]"), "principal[1] 'etl' can be nobody", "token_sha256, token or certificates"),
    "wildcard certificate": (principal("certificates = ['*.example']"), "certificates[1] is '*.example'", "without"),
    "no namespace": (allow("read = ['*']"), "principal[1].allow[1].namespace is missing", '"" for names without one'),
    "namespace pattern": (allow("namespace = 'f*'"), "allow[1].namespace is 'f*'", '"*" for all'),
    "an empty rule": (allow("namespace = ''"), "principal[1].allow[1] allows nothing", "report, read, operate"),
    "star in the middle": (allow("namespace=''\nread=['a*b']"), "allow[1].read[1] is 'a*b'", "one * at the end"),
    "namespace in a name": (allow("namespace=''\nread=['f/a']"), "allow[1].read[1] is 'f/a'", "within the namespace"),
    "same name twice": (
        principal() + principal(tokens=f"['{OPS}']"),
        "principal[2].name is 'etl', which principal[1]",
        "its own",
    ),
    "same token twice": (
        principal() + principal(name="'b'"),
        f"principal[2].token_sha256 is {ETL[:8]}..., which principal[1]",
        "give each its own",
    ),
    "unknown limit": ("[limits]\nrate = 3", "access.toml: limits.rate is unknown", "streams, calls_per_second"),
    "endless calls": ("[limits]\ncalls_per_second = inf", "access.toml: limits.calls_per_second is inf", "above 0"),
    "more than gRPC takes": (
        "[limits]\nmessage_bytes = 0x80000000",
        "access.toml: limits.message_bytes is 2147483648",
        "up to 2147483647",
    ),
    "a number of 5000 digits": (
        f"[limits]\nstreams = 1{'0' * 5000}",
        "access.toml has a number or a nesting that nobody means",
        "remove it",
    ),
    "depth": (f"x = {'[' * 3000}{']' * 3000}", "access.toml has a number or a nesting", "remove it"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_refused_with_the_place_and_the_fix(case: str) -> None:
    text, place, fix = BAD[case]
    with pytest.raises(BadFile) as refused:
        Access.parse(text.encode(errors="surrogateescape"), "access.toml")
    assert place in str(refused.value)
    assert fix in str(refused.value)
    assert "hush-hush" not in str(refused.value)
    assert ETL not in str(refused.value)


def test_a_file_that_everybody_can_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    path.write_text(GOOD)
    path.chmod(0o646)
    with pytest.raises(BadFile, match=r"can be written by everybody on this machine; chmod o-w /.*access\.toml"):
        Access.load(path)
    path.chmod(0o664)
    assert Access.load(path).named("etl")


@pytest.mark.parametrize("regions", ['"eu"', '["*"]', '["eu*"]', '[""]', "[7]"])
def test_a_region_is_named_as_it_is(regions: str) -> None:
    with pytest.raises(BadFile, match="regions"):
        Access.parse(GOOD.replace('["eu", "US west"]', regions).encode(), "access.toml")
