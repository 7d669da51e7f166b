"""What the Redis journal does inside Redis: each write is one Lua script, which checks everything and then writes.

A script starts with ``#!lua``, which Redis knows since 7.0: then a full, read-only, loading or replica-less server
refuses it before its first line, also when it would find nothing to write. Without that line a replica would confirm an
owner, or a repeated append, from old data. After the checks no command can fail any more, so a script writes all or
nothing.

Positions, epochs, nonces and checksums travel as decimal text and are compared as text: a Lua number holds 53 bits.

| reply                         | meaning                                                                    |
| ----------------------------- | -------------------------------------------------------------------------- |
| ``OK``                        | done, or found done                                                        |
| ``FENCED`` i epoch            | owner key i (from 1) names another writer, of that epoch                   |
| ``POSITION`` i last reason    | log i (from 1) ends at ``last``                                            |
| ``COVERED``                   | there is a snapshot that reaches as far                                    |
| ``PARTS`` count               | so many parts of the snapshot are there, not all                           |
| ``CHANGED``                   | another process took the journal over meanwhile                            |
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script; its digest is its name in Redis."""

    text: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


_OWNED: Final = """
-- The refusal when one of the first `count` keys names another owner than the arguments from `at` on.
local function stranger(count, at)
    for i = 1, count do
        local found = redis.call('HMGET', KEYS[i], 'epoch', 'nonce')
        if found[1] ~= ARGV[at + 2 * i - 2] or found[2] ~= ARGV[at + 2 * i - 1] then
            return {'FENCED', i, found[1] or '0'}
        end
    end
end
"""

_PLACED: Final = """
-- The refusal of a snapshot at `position`, or the word that there is one already.
local function unwanted(meta, position)
    local found = redis.call('HMGET', meta, 'last', 'snapshot')
    if tonumber(position) < 1 or tonumber(position) > tonumber(found[1] or '0') then
        return {'POSITION', 1, found[1] or '0', ''}
    end
    if tonumber(position) <= tonumber(found[2] or '0') then
        return {'COVERED'}
    end
end
-- Remove the parts of every snapshot but two.
local function discard(parts, one, other)
    for _, field in ipairs(redis.call('HKEYS', parts)) do
        local token = string.match(field, '^[^/]*')
        if token ~= one and token ~= other then
            redis.call('HDEL', parts, field)
        end
    end
end
"""

# KEYS: owner. ARGV: epoch and nonce that were read ('' for none), then format, token, epoch, nonce, checksum.
TAKE_OVER: Final = Script("""#!lua
local found = redis.call('HMGET', KEYS[1], 'epoch', 'nonce')
if (found[1] or '') ~= ARGV[1] or (found[2] or '') ~= ARGV[2] then
    return {'CHANGED'}
end
redis.call('HSET', KEYS[1], 'format', ARGV[3], 'token', ARGV[4], 'epoch', ARGV[5], 'nonce', ARGV[6],
    'checksum', ARGV[7])
return {'OK'}
""")

# KEYS: the owners, then for each log: index, meta, records. ARGV: number of owners, whether the entries are strong, for
# each owner: epoch, nonce; for each log: position before the first entry, of the last, its checksum, number, name, frames.
APPEND: Final = Script(f"""#!lua
{_OWNED}
local owners = tonumber(ARGV[1])
local refusal = stranger(owners, 3)
if refusal then
    return refusal
end
local runs, log = {{}}, 0
local arg = 3 + 2 * owners
for key = owners + 1, #KEYS, 3 do
    log = log + 1
    local run = {{index = KEYS[key], meta = KEYS[key + 1], records = KEYS[key + 2], before = ARGV[arg], last = ARGV[arg + 1],
        tail = ARGV[arg + 2], count = tonumber(ARGV[arg + 3]), name = ARGV[arg + 4], first = arg + 5}}
    arg = run.first + run.count
    local found = redis.call('HMGET', run.meta, 'last', 'tail')
    local last = found[1] or '0'
    if last == run.before then
        if #redis.call('XRANGE', run.records, '(' .. last .. '-0', '+', 'COUNT', 1) > 0 then
            return {{'POSITION', log, last, 'a record is behind its end'}}
        end
        run.unknown = not found[1]
        runs[#runs + 1] = run
    elseif last == run.last then
        local same = found[2] == run.tail
        for _, entry in ipairs(redis.call('XRANGE', run.records, '(' .. run.before .. '-0', '+')) do
            local place = tonumber(string.match(entry[1], '^%d+')) - tonumber(run.before)
            same = same and entry[2][2] == ARGV[run.first + place - 1]
        end
        if not same then
            return {{'POSITION', log, last, 'another record is there'}}
        end
    else
        return {{'POSITION', log, last, ''}}
    end
end
-- A user may lack the right to SADD or XADD (that to HSET was shown by taking over): these come first.
for _, run in ipairs(runs) do
    if run.unknown then
        redis.call('SADD', run.index, run.name)
    end
end
for _, run in ipairs(runs) do
    for i = 1, run.count do
        redis.call('XADD', run.records, string.format('%.0f-0', tonumber(run.before) + i), 'f', ARGV[run.first + i - 1])
    end
    redis.call('HSET', run.meta, 'last', run.last, 'tail', run.tail)
end
if #runs == 0 and ARGV[2] == '1' then
    -- Found done, but perhaps over another connection, and since 7.2 WAIT waits for what its own connection wrote only.
    redis.call('HSET', KEYS[1], 'epoch', ARGV[3])
end
return {{'OK'}}
""")

# KEYS: owner, meta, parts. ARGV: epoch, nonce, position, token, number of the part, frame.
STAGE: Final = Script(f"""#!lua
{_OWNED}{_PLACED}
local refusal = stranger(1, 1) or unwanted(KEYS[2], ARGV[3])
if refusal then
    return refusal
end
if ARGV[5] == '0' then
    -- What a snapshot that was cut off has left.
    discard(KEYS[3], redis.call('HGET', KEYS[2], 'parts'), ARGV[4])
end
redis.call('HSET', KEYS[3], ARGV[4] .. '/' .. ARGV[5], ARGV[6])
return {{'OK'}}
""")

# KEYS: owner, meta, parts, records. ARGV: epoch, nonce, position, token, number of parts.
FINISH: Final = Script(f"""#!lua
{_OWNED}{_PLACED}
local refusal = stranger(1, 1) or unwanted(KEYS[2], ARGV[3])
if refusal then
    return refusal
end
local staged = 0
for part = 0, tonumber(ARGV[5]) - 1 do
    staged = staged + redis.call('HEXISTS', KEYS[3], ARGV[4] .. '/' .. part)
end
if staged ~= tonumber(ARGV[5]) then
    return {{'PARTS', staged}}
end
redis.call('HSET', KEYS[2], 'snapshot', ARGV[3], 'parts', ARGV[4])
discard(KEYS[3], ARGV[4], ARGV[4])
redis.call('XTRIM', KEYS[4], 'MINID', '=', string.format('%.0f-0', tonumber(ARGV[3]) + 1))
return {{'OK'}}
""")

# KEYS: owner, meta, records. Answers the epoch of the journal; last, tail, snapshot and token of the log; and the id of
# a record behind its end, if there is one.
LOOK: Final = Script("""#!lua flags=no-writes
local found = redis.call('HMGET', KEYS[2], 'last', 'tail', 'snapshot', 'parts')
local behind = redis.call('XRANGE', KEYS[3], '(' .. (found[1] or '0') .. '-0', '+', 'COUNT', 1)
return {redis.call('HGET', KEYS[1], 'epoch') or '0', found[1] or '0', found[2] or '0', found[3] or '0', found[4] or '',
    behind[1] and behind[1][1] or ''}
""")
