"""Settings of a deployment for its dashboards and rules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a deployment; monitoring/generated is made with the defaults.

    The promise that the alerts watch is "every period is complete when ``late_seconds`` have passed
    since its end". It counts periods and no plain age, because a stage that writes windows
    publishes their starts: an hourly stage in perfect health is up to an hour behind its input.
    """

    late_seconds: int = 1800
    """Seconds after its end within which a period has to be complete."""
    period_seconds: int = 3600
    """Length of a period: the longest window that any stage writes. Periods begin at multiples of
    it, UTC."""
    objective: float = 0.99
    """The share of time in which the promise is to be kept."""
    computations: str = ".+"
    """The computations the promise is made for, as an anchored regular expression: leave out
    replays of old data."""
    renewal_seconds: int = 7 * 24 * 3600
    """Seconds before the end of its validity by which a certificate must be renewed; less than a
    certificate is valid for."""
    runbooks: str = "monitoring/runbooks"
    """Beginning of each `runbook_url`: a folder of the repository, or its published address."""
    page: str = "http://localhost:7422"
    """URL of the status page, as the browsers of the dashboards' readers reach it."""

    @property
    def step_seconds(self) -> int:
        """Seconds that a healthy stage may lag its inputs: one period, and time to finish it."""
        return self.period_seconds + 300

    @property
    def objective_words(self) -> str:
        """The objective as people write it."""
        return f"{100 * self.objective:g} %"
