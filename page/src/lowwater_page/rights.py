"""The rights of viewers, as the authority tells them: whose a token is, and what it may see."""

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
"""Time in seconds for which an answer counts.

An answer may be a second old when it comes, so a viewer who is removed from the access file is cut
off within five."""

MOST_WAIT_SECONDS: Final = 1.0
"""Longest time in seconds that an admitted viewer waits for an authority that does not answer."""

MOST_KEPT: Final = 1000
"""Most tokens with a kept answer; beyond it the oldest answer is dropped."""

_OWN: Final = ""
"""In place of a digest: the token of this process itself."""


class AskedRights:
    """Rights as the authority tells them; each answer counts for ``GOOD_SECONDS``.

    ``client`` returns the client that asks, ``monotonic`` gives seconds.

    While no authority answers, no new viewer is admitted. An admitted viewer stays, because the
    page shows nothing new and no operator can have removed the viewer. An admitted viewer waits for
    an answer at most ``MOST_WAIT_SECONDS``.
    """

    def __init__(self, client: Callable[[], Client], *, monotonic: Callable[[], float]) -> None:
        # A queue of its own: a viewer who asks much else must not keep other viewers out.
        self._questions = Questions(client)
        self._monotonic = monotonic
        self._answers: dict[str, tuple[float, Identity]] = {}
        """Answers by digest of the token, each with the monotonic time of the question.

        Of unknown tokens nothing is kept, because anybody can make up any number of them."""

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
        kept = self._answers.get(digest)
        began = self._monotonic()
        if kept is None:
            return self._keep(digest, began, await self._answer(digest))
        asked_at, before = kept
        if began - asked_at < GOOD_SECONDS:
            return before
        try:
            async with asyncio.timeout(MOST_WAIT_SECONDS):
                return self._keep(digest, began, await self._answer(digest))
        except (TimeoutError, *_NO_ANSWER):
            return before

    async def _answer(self, digest: str) -> Identity:
        answer = await self._questions.ask((digest,), lambda client: asdict(client.identify(digest)))
        return Identity(**json.loads(answer))

    def _keep(self, digest: str, asked_at: float, identity: Identity) -> Identity:
        self._answers.pop(digest, None)
        if identity.name or not identity.controlled:
            if len(self._answers) >= MOST_KEPT:
                del self._answers[next(iter(self._answers))]
            self._answers[digest] = asked_at, identity
        return identity


_NO_ANSWER: Final = (errors.Unavailable, errors.Timeout, errors.Overloaded, errors.ShuttingDown)
"""Errors that say nothing about the token."""
