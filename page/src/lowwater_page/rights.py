"""Whose a token is, and what they may see: by what an authority answers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from lowwater import Identity, errors
from lowwater_page.questions import Questions

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowwater import Client

GOOD_SECONDS: Final = 4.0
"""How long an answer counts, which may be a second old when it comes: whoever is removed from the
access file is cut off within five."""

MOST_WAIT_SECONDS: Final = 1.0
"""How long who was let in before waits for an authority that does not answer."""

MOST_KEPT: Final = 1000
"""Tokens whose answers are kept; the oldest of more are asked for anew."""

_OWN: Final = ""
"""In place of a digest: what this process presents itself."""


class AskedRights:
    """What an authority answers, for ``GOOD_SECONDS``.

    ``client`` returns who asks, ``monotonic`` gives seconds.

    While no authority answers, nobody new is let in. Who was let in before stays so: all they see
    is what they have seen already, and there is nobody who could have removed them. Somebody who
    was let in waits ``MOST_WAIT_SECONDS`` for an answer at most.
    """

    def __init__(self, client: Callable[[], Client], *, monotonic: Callable[[], float]) -> None:
        # Not those of viewers: who asks for other answers keeps nobody out.
        self._questions = Questions(client)
        self._monotonic = monotonic
        self._known: dict[str, tuple[float, Identity]] = {}
        """By digest: when it was asked for, and what was answered. Of nobody's tokens nothing is
        kept: there are as many as one likes."""

    async def controlled(self) -> bool:
        """See Rights."""
        return (await self._ask(_OWN)).controlled

    async def whose(self, token_sha256: str) -> Identity:
        """See Rights."""
        return await self._ask(token_sha256)

    def close(self) -> None:
        """See Rights."""
        self._questions.close()

    async def _ask(self, digest: str) -> Identity:
        known = self._known.get(digest)
        began = self._monotonic()
        if known is None:
            return self._keep(digest, began, await self._answer(digest))
        asked, before = known
        if began - asked < GOOD_SECONDS:
            return before
        try:
            async with asyncio.timeout(MOST_WAIT_SECONDS):
                return self._keep(digest, began, await self._answer(digest))
        except (TimeoutError, *_NOBODY_TELLS):
            return before

    async def _answer(self, digest: str) -> Identity:
        found = await self._questions.ask((digest,), lambda client: asdict(client.identify(digest)))
        return Identity(**json.loads(found))

    def _keep(self, digest: str, asked: float, found: Identity) -> Identity:
        self._known.pop(digest, None)
        if found.name or not found.controlled:
            if len(self._known) >= MOST_KEPT:
                del self._known[next(iter(self._known))]
            self._known[digest] = asked, found
        return found


_NOBODY_TELLS: Final = (errors.Unavailable, errors.Timeout, errors.Overloaded, errors.ShuttingDown)
"""What says nothing of whose a token is."""
