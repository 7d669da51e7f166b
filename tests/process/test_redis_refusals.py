"""The Redis journal refuses what cannot be safe, and each refusal says what to change and shows no secret."""

from __future__ import annotations

import re
import subprocess
import traceback
from pathlib import Path

import pytest

from lowwater_authority.journal import JournalCorrupt, JournalFailed, JournalPosition, JournalUnknown, JournalVersion
from lowwater_authority.journal.redis import RedisJournal
from lowwater_authority.journal.redis_link import RedisSettings
from tests.contract.journal_stores import RedisSubject, entry
from tests.contract.redis_server import READY, RedisServer
from tests.kit.ports import free_port

SECRET = "correct-horse"

COMMANDS = re.findall(
    r"\S+",
    "+eval +evalsha +info +config|get +wait +hget +hmget +hset +hkeys +hdel +hexists "
    "+del +smembers +sadd +xrange +xadd +xtrim",
)
"""All that a user needs; docs/operate/durability.md lists them."""


async def refusal(url: str) -> str:
    """The text of the error that opening ends with, with its causes."""
    journal = RedisJournal(url, timeout=2.0)
    with pytest.raises(JournalFailed) as refused:
        await journal.open()
    return str(refused.value) + "".join(traceback.format_exception(refused.value)[:-1])


async def test_a_full_server_writes_nothing(store: RedisSubject) -> None:
    journal = await store.open()
    store.server.execute("CONFIG", "SET", "maxmemory", "1mb")
    for write in (journal.append([entry("a", 1)]), journal.take("a"), journal.restore("a", 1, b"")):
        with pytest.raises(JournalFailed, match="its memory is full: raise maxmemory"):
            await write
    store.server.execute("CONFIG", "SET", "maxmemory", "0")
    assert await journal.logs() == []
    await journal.append([entry("a", 1)])
    assert journal.statistics().failed == 2


async def test_a_server_that_may_evict_is_refused_behind_each_new_connection_too(store: RedisSubject) -> None:
    """The replica that takes over, or the server after its restart, has settings of its own."""
    journal = await store.open("a")
    await journal.append([entry("a", 1)])
    store.server.execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    store.server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await journal.confirm(["a"])  # what is read is read from a new connection
    for write in (journal.append([entry("a", 2, strong=True)]), journal.snapshot("a", 1, b"s"), journal.take("a")):
        with pytest.raises(JournalFailed, match="CONFIG SET maxmemory-policy noeviction there"):
            await write
    assert (await journal.load("a")).last == 1
    store.server.execute("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await journal.append([entry("a", 2, strong=True)])
    assert (await journal.load("a")).last == 2


async def test_too_few_replicas(store: RedisSubject) -> None:
    journal = await store.open()
    store.server.execute("CONFIG", "SET", "min-replicas-to-write", "1")
    for call in (journal.append([entry("a", 1)]), journal.confirm(["a"])):
        with pytest.raises(JournalFailed, match="fewer replicas than min-replicas-to-write"):
            await call


async def test_scripts_are_loaded_again(store: RedisSubject) -> None:
    journal = await store.open()
    await journal.append([entry("a", 1)])
    store.server.execute("SCRIPT", "FLUSH")
    await journal.append([entry("a", 2)])
    await journal.append([entry("a", 3)])
    assert (await journal.load("a")).last == 3


async def test_a_wrong_password_is_named_and_not_shown(tmp_path: Path) -> None:
    with RedisServer(tmp_path, "--requirepass", SECRET) as server:
        server.start()
        text = await refusal(f"redis://nobody:wrong-horse@127.0.0.1:{server.port}")
    assert "into the URL" in text
    assert f"redis://127.0.0.1:{server.port}" in text
    assert "horse" not in text


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"http://:{SECRET}@host", "begins with one of redis://, rediss://, redis"),
        (f"redis://:{SECRET}/x@host", "write /,"),
        (f"redis://:{SECRET}@one,two", "several hosts need"),
        (f"redis+cluster://:{SECRET}@one/3", "database 0 only"),
        (f"redis://:{SECRET}@one?timeuot=3", "redis:// has no option 'timeuot', only client_name, db$"),
    ],
)
def test_a_url_that_cannot_be_used(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        RedisJournal(url)
    assert SECRET not in "".join(traceback.format_exception(refused.value)).replace(repr(url), "")


async def test_a_user_with_the_listed_rights_and_no_others(store: RedisSubject) -> None:
    rights = ("on", f">{SECRET}", "~{lowwater:shop}:*", *COMMANDS)
    store.server.execute("ACL", "SETUSER", "lowwater", *rights)
    url = store.server.url.replace("//", f"//lowwater:{SECRET}@")
    journal = RedisJournal(url, namespace="shop")
    await journal.open()
    await journal.take("a")
    await journal.append([entry("a", n, strong=n == 1) for n in range(1, 6)])
    await journal.append([entry("a", n, strong=n == 1) for n in range(1, 6)])
    for position in (2, 4):
        await journal.snapshot("a", position, b"s")
    assert (await journal.load("a")).last == 5
    assert await journal.logs() == ["a"]
    assert await journal.confirm(["a"]) == 0
    assert (await journal.owners(["a"]))["a"].epoch == 1
    await journal.restore("a", 6, b"s")
    await journal.close()
    assert "see ACL SETUSER" in await refusal(url)


def test_the_rights_are_documented() -> None:
    page = Path(__file__).parents[2] / "docs/operate/durability.md"
    documented = page.read_text(encoding="utf-8")
    assert all(f"`{right}`" in documented for right in COMMANDS)


async def test_a_missing_right_leaves_nothing_half_written(store: RedisSubject) -> None:
    """HSET, the third write of an append, is what ``open`` shows."""
    journal = await store.open()
    await journal.append([entry("a", 1)])
    store.server.execute("ACL", "SETUSER", "default", "-xadd")
    with pytest.raises(JournalFailed):
        await journal.append([entry("b", 1), entry("a", 2)])
    store.server.execute("ACL", "SETUSER", "default", "+xadd")
    await journal.append([entry("b", 1), entry("a", 2)])
    assert (await journal.load("a")).last == 2
    assert (await journal.load("b")).last == 1


@pytest.mark.parametrize("right", ["del", "sadd"])
async def test_a_missing_right_leaves_what_was_to_be_healed(store: RedisSubject, right: str) -> None:
    journal = await store.open()
    await journal.append([entry("a", n) for n in range(1, 4)])
    store.forget("a", 2)
    store.server.execute("ACL", "SETUSER", "default", f"-{right}")
    with pytest.raises(JournalFailed):
        await journal.restore("a", 4, b"three")
    assert sorted(store.records("a")) == [1, 2]


async def test_a_record_behind_the_end_is_refused(store: RedisSubject) -> None:
    journal = await store.open()
    await journal.append([entry("a", 1), entry("b", 1)])
    store.server.execute("XADD", f"{store.TAG}:records:a", "3-0", "f", "x")
    with pytest.raises(JournalPosition, match="a record is behind its end"):
        await journal.append([entry("b", 2), entry("a", 2)])
    with pytest.raises(JournalCorrupt, match="log 'a' at position 3 is damaged"):
        await journal.load("a")
    assert (await journal.load("b")).last == 1


async def test_damage_to_the_deployment_and_a_newer_format(store: RedisSubject) -> None:
    journal = await store.open()
    await journal.append([entry("a", 1)])
    deployment = f"{store.TAG}:deployment"
    store.server.execute("HSET", deployment, "token", "7")
    with pytest.raises(JournalCorrupt, match="its checksum differs"):
        await store.make().open()
    store.server.execute("HSET", deployment, "format", "2")
    with pytest.raises(JournalVersion, match="upgrade lowwater-authority"):
        await store.make().open()
    store.server.execute("DEL", deployment)
    with pytest.raises(JournalCorrupt, match=f"there are logs, but the key {deployment} is missing"):
        await store.make().open()
    # Whoever knows it puts it back.
    await journal.restore("a", 2, b"one")
    assert (await store.connect()).server_token == journal.server_token


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes"]
    command += ["-keyout", str(path.with_name("key.pem")), "-out", str(path)]
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    subprocess.run([*command, *names], check=True, capture_output=True)
    return path


async def test_tls(tmp_path: Path, certificate: Path) -> None:
    port = free_port()
    key = certificate.with_name("key.pem")
    options = ("--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    with RedisServer(tmp_path, *options, "--tls-auth-clients", "no") as server:
        server.start()
        journal = RedisJournal(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}")
        await journal.open()
        await journal.take("a")
        await journal.append([entry("a", 1)])
        assert (await journal.load("a")).last == 1
        await journal.close()
        assert "certificate verify failed" in await refusal(f"rediss://127.0.0.1:{port}")


LOADED_SLOWLY = 200
"""Thousands of commands in the file, 0.1 ms each: it is read for longer than the test takes, which ends the delay."""


async def test_a_loaded_server_is_asked_for_its_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Until then it says that it has no file: a claim would not wait for the sync, and everything be told to be lost for ever."""
    with RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "everysec") as server:
        server.start()
        journal = RedisJournal(server.url)
        await journal.open()
        await journal.take("a")
        await journal.append([entry("a", 1)])
        before = journal.describe_durability()
        for _ in range(LOADED_SLOWLY):
            server.execute("EVAL", "for i = 1, 1000 do redis.call('SET', 'other', i) end", 0)
        server.kill()
        slow = RedisServer(tmp_path, *server.options, "--key-load-delay", "100", ready="Reading RDB base file")
        slow.port = server.port
        with slow:
            slow.start()
            status = slow.execute("INFO", "persistence")
            assert (status["loading"], status["aof_enabled"]) == (1, 0)
            with pytest.raises(JournalUnknown, match="repeat the call"):  # the connection is found dead
                await journal.append([entry("a", 2)])
            for _ in range(2):
                with pytest.raises(JournalUnknown, match="reading its files, wait until it is done"):
                    await journal.append([entry("a", 2)])
                assert journal.describe_durability() == before
            slow.execute("CONFIG", "SET", "key-load-delay", 0)
            slow.wait_for(READY)
            await journal.append([entry("a", 2)])
            assert journal.describe_durability() == before
            await journal.close()
    assert "appendonly yes" in before
    assert not [line for line in caplog.messages if "have changed" in line]


@pytest.mark.parametrize(
    ("settings", "commands", "words"),
    [
        (((7, 0, 15), True, "always", True, 0), [], "A claim can lose: to a power cut nothing, "),
        (((7, 0, 15), True, "everysec", True, 0), [], r"to a power cut up to 2 s \(WAITAOF needs Redis 7.2 and"),
        (((7, 2, 4), True, "everysec", True, 1), ["WAITAOF", "WAIT"], "connected replica can take over"),
        (((8, 0), False, "everysec", True, 0), [], "A claim can lose: to a power cut everything since the last RDB"),
    ],
)
def test_what_a_strong_entry_waits_for(
    settings: tuple[tuple[int, ...], bool, str, bool, int], commands: list[str], words: str
) -> None:
    described = RedisSettings(*settings, role="master", eviction="noeviction")
    assert [command[0] for _, command in described.barrier(1000)] == commands
    assert re.search(words, described.describe())


def test_an_old_server_is_refused() -> None:
    old = RedisSettings.read({"redis_version": "6.2.14", "role": "master"}, {})
    with pytest.raises(JournalFailed, match=r"is Redis 6\.2\.14: the journal needs 7\.0 or newer"):
        old.refuse("redis://host:6379")
