"""The scripts of the Redis journal.

Each write is one Lua script, which checks everything and then writes.

A script starts with ``#!lua``, which Redis knows since 7.0. Then a read-only, loading or
replica-less server refuses the script before its first line, also when it would write nothing. A
full server does so, too, unless ``allow-oom`` says that the script takes no memory. Without that
line a replica would confirm an owner, or a repeated append, from old data. After the checks no
command can fail any more, so a script writes all or nothing.

Positions, epochs, nonces and checksums travel as decimal text. Texts are compared for equality,
because a Lua number holds 53 bits; numbers are compared for order.

| reply                      | meaning                                                             |
| -------------------------- | ------------------------------------------------------------------- |
| ``OK`` ...                 | done, now or by an earlier attempt                                  |
| ``REPLACED`` token         | the store belongs to another deployment                             |
| ``GONE`` states            | the store has lost its deployment                                   |
| ``HELD`` states            | a log is not as the caller believes; a state is: last position,     |
|                            | epoch, nonce, tail                                                  |
| ``FENCED`` epoch           | another process has taken the log, with that epoch                  |
| ``OUTVOTED`` view          | the log was taken under that view                                   |
| ``POSITION`` i last reason | log i (from 1) ends at ``last``                                     |
| ``COVERED``                | a snapshot that reaches as far is in force                          |
| ``PARTS`` count            | only so many parts of the snapshot are stored                       |
| ``CHANGED``                | another process has created the deployment, or taken or changed the |
|                            | log, meanwhile                                                      |
| ``ORPHANS``                | there are logs, but no deployment                                   |
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


_HELD: Final = """
local token = redis.call('HGET', KEYS[1], 'token')
if token and token ~= ARGV[1] then
    return {'REPLACED', token}
end
local refused, states = not token, {token and 'HELD' or 'GONE'}
-- Whether a log lacks what was acknowledged: it is shorter, or ends there with another record.
local function lacks(last, tail, acknowledged, acknowledged_tail)
    return tonumber(last) < tonumber(acknowledged) or last == acknowledged and tail ~= acknowledged_tail
end
-- Where a log ends. To be refused when it lacks what was acknowledged, or has another owner; '' owns the graph.
local function look(meta, epoch, nonce, acknowledged, acknowledged_tail)
    local found = redis.call('HMGET', meta, 'last', 'epoch', 'nonce', 'tail')
    for i = 1, 4 do
        states[#states + 1] = found[i] or '0'
    end
    refused = refused or lacks(found[1] or '0', found[4] or '0', acknowledged, acknowledged_tail)
        or epoch ~= '' and (found[2] ~= epoch or found[3] ~= nonce)
    return found[1] or '0', found[4] or '0'
end
"""

_DISCARD: Final = """
-- Remove the parts of every snapshot but two; in the graph, which others may be about to replace, only those up to `position`.
local function discard(parts, one, other, owned, position)
    for _, field in ipairs(redis.call('HKEYS', parts)) do
        local name = string.match(field, '^[^/]*')
        if name ~= one and name ~= other and (owned or tonumber(string.match(name, '^%d+')) <= tonumber(position)) then
            redis.call('HDEL', parts, field)
        end
    end
end
local function count(parts, name, wanted)
    local staged = 0
    for part = 0, tonumber(wanted) - 1 do
        staged = staged + redis.call('HEXISTS', parts, name .. '/' .. part)
    end
    return staged
end
"""

_PLACED: Final = """
local last = look(KEYS[2], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
if refused then
    return states
end
local snapshot, committed = unpack(redis.call('HMGET', KEYS[2], 'snapshot', 'parts'))
if tonumber(ARGV[6]) < 1 or tonumber(ARGV[6]) > tonumber(last) then
    return {'POSITION', 1, last, ''}
end
if tonumber(ARGV[6]) <= tonumber(snapshot or '0') then
    return {'COVERED'}
end
"""

# KEYS: deployment, index. ARGV: token that was read ('' for none); then, to be written, token,
# format, checksum.
CREATE: Final = Script("""#!lua
if (redis.call('HGET', KEYS[1], 'token') or '') ~= ARGV[1] then
    return {'CHANGED'}
end
if ARGV[1] == '' and #redis.call('SMEMBERS', KEYS[2]) > 0 then
    return {'ORPHANS'}
end
redis.call('HSET', KEYS[1], 'token', ARGV[2], 'format', ARGV[3], 'checksum', ARGV[4])
return {'OK'}
""")

# KEYS: deployment, meta. ARGV: token; epoch ('0' for none), nonce, end and its tail as this process
# has them; epoch and nonce that were read ('0' for none), so that an attempt which arrives late,
# behind its repeat, takes nothing; what the next epoch must be above, its nonce, view, address.
# Answers the epoch.
TAKE: Final = Script(f"""#!lua
{_HELD}
local last, tail = look(KEYS[2], '', '', '0', '0')
local epoch, nonce, view = unpack(redis.call('HMGET', KEYS[2], 'epoch', 'nonce', 'view'))
local lower = tonumber(epoch or '0') < tonumber(ARGV[2])
local less = epoch == ARGV[2] and nonce == ARGV[3] and lacks(last, tail, ARGV[4], ARGV[5])
if refused or lower or less then
    return states
end
if tonumber(view or '0') > tonumber(ARGV[10]) then
    return {{'OUTVOTED', view}}
end
if (epoch or '0') ~= ARGV[6] or (nonce or '0') ~= ARGV[7] then
    return {{'CHANGED'}}
end
epoch = string.format('%.0f', math.max(tonumber(ARGV[6]), tonumber(ARGV[8])) + 1)
redis.call('HSET', KEYS[2], 'epoch', epoch, 'nonce', ARGV[9], 'view', ARGV[10], 'address', ARGV[11])
return {{'OK', epoch}}
""")

# KEYS: deployment, meta of the graph, then of each log. ARGV: token, end of the graph, its tail;
# epoch, nonce, end and tail of each log, as one text, for hundreds of arguments take longer to send
# than to compare. Answers where the graph ends.
CONFIRM: Final = Script(f"""#!lua flags=allow-oom
{_HELD}
local last = look(KEYS[2], '', '', ARGV[2], ARGV[3])
local i = 2
for epoch, nonce, acknowledged, tail in string.gmatch(ARGV[4], '(%d+) (%d+) (%d+) (%d+)') do
    i = i + 1
    look(KEYS[i], epoch, nonce, acknowledged, tail)
end
if refused or i ~= #KEYS then
    return states
end
return {{'OK', last}}
""")

# KEYS: deployment, meta, records. ARGV: token, end of the log as it was read, its tail. Writes what
# is there already, behind what was read: WAIT and WAITAOF wait for the last write of their own
# connection.
SETTLE: Final = Script(f"""#!lua flags=allow-oom
{_HELD}
local last, tail = look(KEYS[2], '', '', '0', '0')
if refused then
    return states
end
local same = last == ARGV[2] and tail == ARGV[3]
if tonumber(last) > tonumber(ARGV[2]) then
    -- Its owner, or in the graph another process, has gone on: then the record that was read stands where it stood.
    local place = ARGV[2] .. '-0'
    local entry = redis.call('XRANGE', KEYS[3], place, place)[1]
    same = entry and string.format('%.0f', (struct.unpack('<I4', entry[2][2]))) == ARGV[3]
end
if not same then
    return {{'CHANGED'}}
end
redis.call('HSET', KEYS[1], 'token', token)
return {{'OK'}}
""")

# KEYS: deployment, then the meta of each log. ARGV: token. Answers for each log: epoch, nonce,
# address, view.
OWNERS: Final = Script(f"""#!lua flags=allow-oom
{_HELD}
local owners = {{'OK'}}
for i = 2, #KEYS do
    look(KEYS[i], '', '', '0', '0')
    for _, value in ipairs(redis.call('HMGET', KEYS[i], 'epoch', 'nonce', 'address', 'view')) do
        owners[#owners + 1] = value or ''
    end
end
return refused and states or owners
""")

# KEYS: deployment, index, then for each log: meta, records. ARGV: token, whether the entries are
# strong; for each log: epoch and nonce ('' in the graph), end as acknowledged, its tail, position
# before the first entry, of the last, its checksum, number, name, frames. A log without frames is
# only looked at, and stands behind the others.
APPEND: Final = Script(f"""#!lua
{_HELD}
local runs, arg = {{}}, 3
for key = 3, #KEYS, 2 do
    local run = {{meta = KEYS[key], records = KEYS[key + 1], owned = ARGV[arg] ~= '', before = ARGV[arg + 4], last = ARGV[arg + 5],
        tail = ARGV[arg + 6], count = tonumber(ARGV[arg + 7]), name = ARGV[arg + 8], first = arg + 9}}
    run.found, run.tail_found = look(run.meta, ARGV[arg], ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3])
    if run.count > 0 then
        runs[#runs + 1] = run
    end
    arg = run.first + run.count
end
if refused then
    return states
end
local new, written, elsewhere = {{}}, 0, nil
for i, run in ipairs(runs) do
    local last = run.found
    if last == run.before then
        if #redis.call('XRANGE', run.records, '(' .. last .. '-0', '+', 'COUNT', 1) > 0 then
            return {{'POSITION', i, last, 'a record is behind its end'}}
        end
        new[#new + 1] = run
    elseif last == run.last or not run.owned and tonumber(last) > tonumber(run.last) then
        local entries = redis.call('XRANGE', run.records, '(' .. run.before .. '-0', run.last .. '-0')
        -- A snapshot may have taken the frames away, and the last one may be damaged since.
        local ended = last == run.last and run.tail_found == run.tail
        local same = ended or #entries == run.count
        for _, entry in ipairs(entries) do
            local place = tonumber(string.match(entry[1], '^%d+')) - tonumber(run.before)
            same = same and (ended and place == run.count or entry[2][2] == ARGV[run.first + place - 1])
        end
        if same then
            written = written + (run.owned and 1 or 0)
        elseif run.owned then
            return {{'POSITION', i, last, 'another record is there'}}
        else
            elsewhere = {{'POSITION', i, last, 'another record is there'}}
        end
    else
        return {{'POSITION', i, last, ''}}
    end
end
-- What the graph does not tell any more, the logs of the same call do: all was written in one step.
if elsewhere and (#new > 0 or written == 0) then
    return elsewhere
end
-- A user may lack the right to SADD or XADD (that to HSET was shown by opening): these come first.
for _, run in ipairs(new) do
    if run.before == '0' then
        redis.call('SADD', KEYS[2], run.name)
    end
end
for _, run in ipairs(new) do
    for i = 1, run.count do
        redis.call('XADD', run.records, string.format('%.0f-0', tonumber(run.before) + i), 'f', ARGV[run.first + i - 1])
    end
    redis.call('HSET', run.meta, 'last', run.last, 'tail', run.tail)
end
if #new == 0 and ARGV[2] == '1' then
    -- Found done, but perhaps over another connection, and since 7.2 WAIT waits for what its own connection wrote only.
    redis.call('HSET', KEYS[1], 'token', token)
end
return {{'OK'}}
""")

# KEYS: deployment, meta, parts. ARGV: token, epoch, nonce, end, tail, position, name of the
# snapshot, number of the part, frame.
STAGE: Final = Script(f"""#!lua
{_HELD}{_DISCARD}{_PLACED}
if ARGV[8] == '0' then
    -- What a snapshot that was cut off has left.
    discard(KEYS[3], committed, ARGV[7], ARGV[2] ~= '', snapshot or '0')
end
redis.call('HSET', KEYS[3], ARGV[7] .. '/' .. ARGV[8], ARGV[9])
return {{'OK'}}
""")

# KEYS: deployment, meta, parts, records. ARGV: token, epoch, nonce, end, tail, position, name of
# the snapshot, number of parts, checksum of the record at the position in the graph ('' in other
# logs).
FINISH: Final = Script(f"""#!lua
{_HELD}{_DISCARD}{_PLACED}
if ARGV[9] ~= '' then
    -- What the store had lost, others may have replaced, and gone on: then this is no snapshot of what they stand on.
    local place = ARGV[6] .. '-0'
    local entry = redis.call('XRANGE', KEYS[4], place, place)[1]
    if not entry or string.format('%.0f', (struct.unpack('<I4', entry[2][2]))) ~= ARGV[9] then
        return {{'POSITION', 1, last, 'another record is there'}}
    end
end
local staged = count(KEYS[3], ARGV[7], ARGV[8])
if staged ~= tonumber(ARGV[8]) then
    return {{'PARTS', staged}}
end
redis.call('HSET', KEYS[2], 'snapshot', ARGV[6], 'parts', ARGV[7])
discard(KEYS[3], ARGV[7], ARGV[7], ARGV[2] ~= '', ARGV[6])
redis.call('XTRIM', KEYS[4], 'MINID', '=', string.format('%.0f-0', tonumber(ARGV[6]) + 1))
return {{'OK'}}
""")

# KEYS: deployment, parts. ARGV: token, name of the snapshot, number of the part, frame.
STAGE_RESTORE: Final = Script(f"""#!lua
{_HELD}
redis.call('HSET', KEYS[2], ARGV[2] .. '/' .. ARGV[3], ARGV[4])
return {{'OK'}}
""")

# KEYS: deployment, meta, parts, records, index. ARGV: token, epoch of this process ('' in the
# graph), nonce of the next, view, address, position, name of the snapshot, number of parts, name of
# the log, format, checksum, nonce of this process, end as acknowledged, and the tail to be; end and
# its tail as they were when the log was read ('' when they do not matter). Answers the epoch.
RESTORE: Final = Script(f"""#!lua
{_HELD}{_DISCARD}
-- A deployment that is gone is no reason to refuse: this puts it back.
local last, tail = look(KEYS[2], '', '', '0', '0')
local epoch, nonce, view, committed = unpack(redis.call('HMGET', KEYS[2], 'epoch', 'nonce', 'view', 'parts'))
local owned = ARGV[2] ~= ''
-- An own epoch is lower than the store's when an attempt of unknown outcome was written: that has this nonce.
if owned and nonce ~= ARGV[3] and epoch and (tonumber(epoch) > tonumber(ARGV[2])
        or epoch == ARGV[2] and nonce ~= ARGV[12]) then
    return {{'FENCED', epoch}}
end
if owned and tonumber(view or '0') > tonumber(ARGV[4]) then
    return {{'OUTVOTED', view}}
end
local furthest = math.max(tonumber(last), tonumber(ARGV[13]))
local repeated = last == ARGV[6] and committed == ARGV[7]
if ARGV[15] ~= '' and not repeated and (last ~= ARGV[15] or tail ~= ARGV[16]) then
    return {{'POSITION', 1, last, 'it has changed since it was read'}}
end
if furthest >= tonumber(ARGV[6]) and not repeated then
    return {{'POSITION', 1, string.format('%.0f', furthest), 'a restore must be behind it'}}
end
local staged = count(KEYS[3], ARGV[7], ARGV[8])
if staged ~= tonumber(ARGV[8]) then
    return {{'PARTS', staged}}
end
-- What a user may lack the right to comes first, as in an append.
redis.call('SADD', KEYS[5], ARGV[9])
redis.call('DEL', KEYS[4])
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'format', ARGV[10], 'checksum', ARGV[11])
redis.call('HSET', KEYS[2], 'last', ARGV[6], 'tail', ARGV[14], 'snapshot', ARGV[6], 'parts', ARGV[7])
if owned and not (repeated and nonce == ARGV[3]) then
    -- Else an attempt that arrives late, behind its repeat, would fence the process that made it.
    epoch = string.format('%.0f', math.max(tonumber(epoch or '0'), tonumber(ARGV[2])) + 1)
    redis.call('HSET', KEYS[2], 'epoch', epoch, 'nonce', ARGV[3], 'address', ARGV[5], 'view', ARGV[4])
end
discard(KEYS[3], ARGV[7], ARGV[7], owned, ARGV[6])
return {{'OK', epoch or '0'}}
""")

# KEYS: deployment, meta of the graph, index. ARGV: token. Answers the names of the logs.
LOGS: Final = Script(f"""#!lua flags=no-writes
{_HELD}
look(KEYS[2], '', '', '0', '0')
return refused and states or {{'OK', redis.call('SMEMBERS', KEYS[3])}}
""")

# KEYS: deployment, meta, records. ARGV: token. Answers last, epoch, nonce, tail, snapshot and name
# of its parts; and the id of a record behind the end, if there is one.
LOOK: Final = Script(f"""#!lua flags=no-writes
{_HELD}
local last, tail = look(KEYS[2], '', '', '0', '0')
if refused then
    return states
end
local found = redis.call('HMGET', KEYS[2], 'snapshot', 'parts')
local behind = redis.call('XRANGE', KEYS[3], '(' .. last .. '-0', '+', 'COUNT', 1)
return {{'OK', last, states[3], states[4], tail, found[1] or '0', found[2] or '',
    behind[1] and behind[1][1] or ''}}
""")
