"""The random histories of ``tests/contract/test_journal_model.py``, over a real redis-server."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings

from tests.contract.journal_stores import RedisSubject, StoreSubject
from tests.contract.test_journal_model import JournalMachine


class RedisMachine(JournalMachine):
    def make_store(self) -> StoreSubject:
        self.directory = tempfile.TemporaryDirectory()
        return RedisSubject(Path(self.directory.name))

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "directory"):
            self.directory.cleanup()


TestRedisModel = RedisMachine.TestCase
TestRedisModel.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
