"""Guarded writes into Redis: one Lua script checks the guard's rows and runs the commands.

A guard is one hash for each slot, ``lowwater:guard:{NAME}:SLOT``. All keys of a write contain
``{NAME}`` as well. It is Redis Cluster's hash tag, so all of them are on one server, and the script
may touch them together.

Numbers are texts of 20 digits, and compared as texts: Lua's numbers are doubles, and ``tonumber``
makes two different tokens above 2**53 equal.

Redis does not undo a script when one of its commands fails. So the script checks the types of the
keys before it writes, and takes only commands that then cannot fail.

Needs the extra ``lowwater-pipeline[redis]``, and Redis 7.0 or newer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import redis

from lowwater_pipeline.guard.claim import Claim, slot_bounds, slots_between
from lowwater_pipeline.guard.errors import GuardError, InDoubt, Rewound, Unfit
from lowwater_pipeline.guard.row import (
    FIELDS,
    Row,
    check_begin,
    check_steps,
    damaged,
    refused,
    refused_raise,
)

__all__ = ["Command", "RedisGuard", "RedisWriter"]

Command = Sequence[str | bytes | int | float]
"""One command with its arguments, as ``("HSET", "counts:{hourly}", "09:00", 17)``."""

_DIGITS: Final = 20

_TYPES: Final[Mapping[str, tuple[str, int, int]]] = {
    # Type of the key, least number of further arguments, and step of their number (0: exactly).
    "SET": ("", 1, 0),
    "DEL": ("", 0, 0),
    "HSET": ("hash", 2, 2),
    "HDEL": ("hash", 1, 1),
    "SADD": ("set", 1, 1),
    "SREM": ("set", 1, 1),
    "RPUSH": ("list", 1, 1),
    "LPUSH": ("list", 1, 1),
    "ZADD": ("zset", 2, 2),
    "ZREM": ("zset", 1, 1),
}
"""Commands on one key that cannot fail if the key has their type."""

MOST: Final = 500_000
"""Greatest number of arguments of one write: Redis serves no other client while it runs."""

_LIFE: Final = """
local life = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
"""
"""Reads the store's life. It changes when the server restarts, and when a replica takes over."""

_ROWS: Final = """
local names = {'server_token', 'computation', 'identity', 'incarnation', 'token', 'nonce', 'configuration', 'life', 'batch', 'digest'}
local function read(key)
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return nil end
  if kind ~= 'hash' then return {damaged = 'its key is a ' .. kind} end
  local row, found, missing = {}, redis.call('HMGET', key, 'slots', unpack(names)), 0
  for i, name in ipairs(names) do
    row[name] = found[i + 1]
    if not row[name] then missing = missing + 1 end
  end
  -- The row of slot 0 also says how many there are, and may say nothing else yet.
  if missing == #names and found[1] then return nil end
  if missing > 0 then return {damaged = missing .. ' of its fields are not there'} end
  for _, name in ipairs({'incarnation', 'token', 'configuration'}) do
    if not string.match(row[name], '^%d+$') or #row[name] ~= 20 then return {damaged = name .. ' is no number of 20 digits'} end
  end
  if not string.match(row.batch, '^-?%d+$') then return {damaged = 'batch is no number'} end
  return row
end
"""

_FOUND: Final = """
local function found()
  local all = {life}
  for i = 1, slots do
    local row = rows[i]
    if row and row.damaged then all[#all + 1] = {row.damaged}
    elseif row then
      local said = {}
      for _, name in ipairs(names) do said[#said + 1] = row[name] end
      all[#all + 1] = said
    else all[#all + 1] = {} end
  end
  return all
end
"""
"""Returns the rows, from which the caller finds the reason of a refusal."""

RAISE: Final = (
    _LIFE
    + _ROWS
    + """
-- A guard that is evicted alone would leave the rows to the next zombie, which raises over nothing. Keys of a guard do not expire, so volatile policies leave them.
local memory = redis.call('INFO', 'memory')
local policy, most = string.match(memory, 'maxmemory_policy:([%w-]+)'), string.match(memory, 'maxmemory:(%d+)')
if most ~= '0' and policy ~= 'noeviction' and string.sub(policy, 1, 9) ~= 'volatile-' then return {'evicts', policy, most} end
-- KEYS: the row of slot 0, then those of the claim. ARGV: how many slots the guard has; the claim; the number before the first batch.
local made, server, computation, incarnation, token, nonce, configuration, before, identity =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local slots, rows = #KEYS - 1, {}
for i = 1, slots do rows[i] = read(KEYS[i + 1]) end
"""
    + _FOUND
    + """
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'hash' then return {'damaged', 'its key for slot 0 is a ' .. kind} end
local first = redis.call('HGET', KEYS[1], 'slots')
if first and first ~= made then return {'slots', first} end
if not first and redis.call('EXISTS', KEYS[1]) == 1 then return {'damaged', 'slot 0 does not say how many slots there are'} end
for i = 1, slots do
  local row = rows[i]
  if row and row.damaged then return {'refused', found()} end
  if row then
    local same = row.token == token
    if row.server_token ~= server or row.computation ~= computation or row.token > token or row.incarnation > incarnation
      or (same and (row.nonce ~= nonce or row.life ~= life or row.configuration ~= configuration))
      or (not same and (row.configuration > configuration or (row.identity ~= identity and row.incarnation == incarnation))) then return {'refused', found()} end
  end
end
redis.call('HSET', KEYS[1], 'slots', made)
for i = 1, slots do
  local row = rows[i]
  if not (row and row.token == token) then
    local kept = row and row.identity == identity
    redis.call('HSET', KEYS[i + 1], 'server_token', server, 'computation', computation, 'identity', identity, 'incarnation', incarnation, 'token', token,
      'nonce', nonce, 'configuration', configuration, 'life', life,
      'batch', kept and row.batch or before, 'digest', kept and row.digest or '')
  end
  rows[i] = read(KEYS[i + 1])
end
return {'raised', found()}
"""
)

WRITE: Final = (
    _LIFE
    + _ROWS
    + """
-- KEYS: the rows that are touched, then the keys of the commands. ARGV: how many rows; the claim; the digest; of each row the number of the batch and the one before;
-- then of each command how many arguments it has, the type that its key must have, and the command.
local slots, server, computation, token, nonce, configuration, digest = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local at, rows = 7, {}
for i = 1, slots do rows[i] = read(KEYS[i]) end
"""
    + _FOUND
    + """
local done, new = 0, 0
for i = 1, slots do
  local row, batch, before = rows[i], ARGV[at + 1], ARGV[at + 2]
  at = at + 2
  if not row or row.damaged or row.server_token ~= server or row.computation ~= computation or row.token ~= token or row.nonce ~= nonce
    or row.life ~= life or row.configuration ~= configuration then return {'refused', found()} end
  if row.batch == batch and row.digest == digest then done = done + 1
  elseif row.batch == before then new = new + 1
  else return {'refused', found()} end
end
if done > 0 and new > 0 then return {'half', found()} end
if done > 0 then return {'done'} end
for i = 1, slots do
  if not redis.acl_check_cmd('HSET', KEYS[i], 'batch', '0', 'digest', digest) then return {'denied', 'HSET', KEYS[i]} end
end
local commands, now = {}, {}
while at < #ARGV do
  local first, last, kind = at + 3, at + 2 + tonumber(ARGV[at + 1]), ARGV[at + 2]
  local name, key = ARGV[first], ARGV[first + 1]
  if not redis.acl_check_cmd(unpack(ARGV, first, last)) then return {'denied', name, key} end
  local is = now[key] or redis.call('TYPE', key).ok
  if name == 'SET' then is = 'string'
  elseif name == 'DEL' then is = 'none'
  elseif is ~= 'none' and is ~= kind then return {'type', key, is, kind}
  else is = kind end
  now[key] = is
  commands[#commands + 1] = {first, last}
  at = last
end
for _, each in ipairs(commands) do
  local first, last = each[1], each[2]
  redis.call(unpack(ARGV, first, last))
end
for i = 1, slots do
  redis.call('HSET', KEYS[i], 'batch', ARGV[7 + 2 * i - 1], 'digest', digest)
end
return {'written'}
"""
)


class RedisGuard:
    """One guard in one Redis. Several guards of one Redis are independent. Not thread-safe.

    ``client`` is the caller's: of a single server, of a Sentinel's master, or of a Cluster.
    ``name`` and ``slots`` as for :class:`lowwater_pipeline.guard.postgres.PostgresGuard`; the name
    is the hash tag of all keys, so it has no braces. Each call is one script.
    """

    def __init__(self, client: redis.Redis | redis.RedisCluster, name: str, *, slots: int = 1) -> None:
        slot_bounds(slots)
        if not name or {"{", "}", "\0"} & set(name):
            msg = f"name={name!r}: it is a text that is not empty, without braces: it is the hash tag of the keys"
            raise Unfit(msg)
        self.client = client
        self.name = name
        self.slots = slots
        self._raise = client.register_script(RAISE)
        self._write = client.register_script(WRITE)

    @property
    def tag(self) -> str:
        """The hash tag that each key of a write contains."""
        return f"{{{self.name}}}"

    def key(self, slot: int) -> str:
        """Return the key of a slot's row."""
        return f"lowwater:guard:{self.tag}:{slot}"

    def raise_(self, claim: Claim, *, bounds: Iterable[bytes] = (b"", b""), begin: int = 0) -> RedisWriter:
        """Raise a claim that the authority has acknowledged, and return its writer.

        As :meth:`lowwater_pipeline.guard.postgres.PostgresGuard.raise_`, but without a lock to wait
        for. Raises InDoubt when Redis did not answer, and Unfit when Redis may evict keys that do
        not expire.
        """
        slots = slots_between(bounds, self.slots)
        check_begin(begin)
        keys = [self.key(0), *map(self.key, slots)]
        arguments = [
            str(self.slots),
            claim.server_token,
            claim.computation,
            _digits(claim.incarnation),
            _digits(claim.token),
            claim.nonce,
            _digits(claim.configuration),
            str(begin - 1),
            claim.identity,
        ]
        verdict, *details = self._run(self._raise, keys, arguments)
        if verdict == "slots":
            raise damaged(
                f"the guard {self.name}", f"it was made with {details[0]} slots and is opened with {self.slots}"
            )
        if verdict == "evicts":
            msg = (
                f"the guard {self.name}: Redis may evict it at any time, by maxmemory-policy {details[0]} and maxmemory {details[1]}, and keep what it guards. Set the policy to noeviction "
                "or to a volatile one, or maxmemory to 0; then raise again. Nothing was written."
            )
            raise Unfit(msg)
        if verdict == "damaged":
            raise damaged(f"the guard {self.name}", details[0])
        life, rows = self._rows_of(slots, details[0])
        if verdict == "raised":
            return RedisWriter(self, claim, slots, cast(dict[int, Row], rows))
        raise self._first(refused_raise(row, claim, life, self._where(slot)) for slot, row in rows.items())

    def write(self, claim: Claim, steps: Mapping[int, int], digest: str, commands: Iterable[Command]) -> bool:
        """See :meth:`RedisWriter.write`."""
        touched = sorted(steps)
        keys = {self.key(slot): None for slot in touched}
        arguments: list[str | bytes] = [
            str(len(touched)),
            claim.server_token,
            claim.computation,
            _digits(claim.token),
            claim.nonce,
            _digits(claim.configuration),
            digest,
        ]
        for slot in touched:
            arguments += [str(steps[slot]), str(steps[slot] - 1)]
        for command in commands:
            kind, words = self._checked(command)
            arguments += [str(len(words)), kind, *words]
            keys[_text(words[1])] = None
        if len(arguments) > MOST:
            msg = f"a write has at most {MOST:,} arguments, and this one has {len(arguments):,}: Redis does nothing else meanwhile. Write smaller batches."
            raise Unfit(msg)
        verdict, *details = self._run(self._write, list(keys), arguments)
        if verdict in ("written", "done"):
            return bool(verdict == "written")
        if verdict == "denied":
            msg = f"this user of Redis may not {details[0]} the key {details[1]}: nothing was written. Give it the command and the key by ACL SETUSER."
            raise Unfit(msg)
        if verdict == "type":
            msg = f"the key {details[0]} is a {details[1]}, and a command of the batch needs a {details[2]}: nothing was written"
            raise Unfit(msg)
        life, rows = self._rows_of(touched, details[0])
        if verdict == "half":
            msg = f"the guard {self.name} has the batch {digest} in some of its slots and not in others: the store was restored in part. Restore all of it from one moment."
            raise Rewound(msg)
        raise self._first(
            refused(row, claim, life, steps[slot], digest, self._where(slot)) for slot, row in rows.items()
        )

    def rows(self) -> dict[int, Row | None]:
        """Return the row of each slot now, for people. Raises Damaged."""
        rows: dict[int, Row | None] = {}
        for slot in range(self.slots):
            fields = cast(dict[Any, Any], self.client.hgetall(self.key(slot)))
            values = {_text(name): _text(value) for name, value in fields.items()}
            rows[slot] = self._row(slot, [values.get(name, "") for name in FIELDS])
        return rows

    def _checked(self, command: Command) -> tuple[str, list[str | bytes]]:
        """Return the type of a command's key, and the command as it is sent.

        Raises Unfit for a command that could fail half-way.
        """
        name, *values = command
        name = str(name).upper()
        if name not in _TYPES:
            msg = f"{name} cannot be written under a guard, since a script is not undone when it fails: write {', '.join(_TYPES)}"
            raise Unfit(msg)
        kind, least, step = _TYPES[name]
        if len(values) < 1 + least or (step == 0 and len(values) != 1 + least) or (step and (len(values) - 1) % step):
            msg = f"{name} with {len(values)} arguments: it has one key" + (
                f", then {'pairs' if step == 2 else 'values'}"
                if step
                else " and nothing else"
                if not least
                else " and one value"
            )
            raise Unfit(msg)
        if len(values) > _ROOM:
            msg = f"{name} with {len(values):,} arguments: give it at most {_ROOM:,}, and the rest to another one of the same batch"
            raise Unfit(msg)
        if name == "ZADD" and not all(_is_score(score) for score in values[1::2]):
            msg = f"ZADD of {values[0]!r}: a score is a finite number, and stands before its member"
            raise Unfit(msg)
        words = [value if isinstance(value, bytes) else str(value) for value in values]
        if self.tag.encode() not in (words[0] if isinstance(words[0], bytes) else words[0].encode()):
            msg = f"the key {values[0]!r} has not {self.tag} in it: all keys of a guarded write stand where the guard does"
            raise Unfit(msg)
        if _text(words[0]).startswith("lowwater:guard:"):
            msg = f"the key {values[0]!r} is a guard's own"
            raise Unfit(msg)
        return kind, [name, *words]

    def _run(self, script: Any, keys: Sequence[str], arguments: Sequence[str | bytes]) -> list[Any]:
        try:
            return cast(list[Any], _texts(script(keys=keys, args=arguments)))
        except (redis.ConnectionError, redis.TimeoutError) as failure:
            msg = f"the guard {self.name}: Redis did not answer: {failure}. It may or may not have been done. Do the same again: it is done once."
            raise InDoubt(msg) from failure

    def _rows_of(self, slots: Iterable[int], reply: Sequence[Any]) -> tuple[str, dict[int, Row | None]]:
        life, *rows = reply
        return life, {slot: self._row(slot, row) for slot, row in zip(slots, rows, strict=True)}

    def _row(self, slot: int, values: Sequence[str]) -> Row | None:
        if len(values) == 1:
            raise damaged(self._where(slot), values[0])
        if not any(values):
            return None
        try:
            return Row.of(dict(zip(FIELDS, values, strict=True)))
        except ValueError as error:
            raise damaged(self._where(slot), error) from error

    def _first(self, problems: Iterable[GuardError | None]) -> GuardError:
        """Return the first reason for which the script has refused."""
        for problem in problems:
            if problem is not None:
                return problem
        return damaged(f"the guard {self.name}", "the script has refused what its rows allow")

    def _where(self, slot: int) -> str:
        return f"slot {slot} of the guard {self.name}"


class RedisWriter:
    """The owner of some slots until the next raise; :meth:`RedisGuard.raise_` returns it."""

    def __init__(self, guard: RedisGuard, claim: Claim, slots: range, rows: Mapping[int, Row]) -> None:
        self.guard = guard
        self.claim = claim
        self.slots = slots
        self.found = dict(rows)
        """Row of each slot after the raise; its batch is the last one that the store has."""

    def write(self, batch: int | Mapping[int, int], digest: str, commands: Iterable[Command]) -> bool:
        """Write a batch once; return False if the store has it already.

        ``commands`` run in their order, all or none: SET, DEL, HSET, HDEL, SADD, SREM, RPUSH,
        LPUSH, ZADD and ZREM, each on one key that contains the guard's ``{NAME}``. ``batch`` and
        ``digest`` as for :meth:`lowwater_pipeline.guard.postgres.PostgresWriter.write`. The result
        is as durable as what this Redis acknowledges.

        Raises Fenced when a newer claim was raised, InDoubt when Redis did not answer, Unfit for
        other commands and for a key of another type, another GuardError, and what the client raises
        when Redis refuses all writes. Redis serves no other client while it runs.
        """
        steps = check_steps(self.slots, batch, digest, self.guard.name)
        return self.guard.write(self.claim, steps, digest, commands)


_ROOM: Final = 4_000
"""Greatest number of arguments of one command, which go over Lua's stack."""


def _digits(number: int) -> str:
    """Return a number as the text that is compared.

    >>> _digits(7) < _digits(2**53) < _digits(2**53 + 1)
    True
    """
    return f"{number:0{_DIGITS}}"


def _is_score(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _text(value: str | bytes) -> str:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


def _texts(reply: Any) -> Any:
    return [_texts(item) for item in reply] if isinstance(reply, list) else _text(reply)
