"""A secret of the environment, or of a file that the environment names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lowwater_authority.files.table import BadFile

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["secret"]


def secret(name: str, environment: Mapping[str, str]) -> str:
    """Return what stands in the file that ``NAME_FILE`` names, which wins, or the variable; empty where neither is set.

    The environment of a process can be read by its user for as long as the process lives, and every process that it starts gets a copy.
    Raises BadFile, which quotes nothing of the secret.
    """
    path = environment.get(f"{name}_FILE", "")
    if not path:
        return environment.get(name, "")
    place = f"{name}_FILE: {path}"
    try:
        text = Path(path).read_text("utf-8").strip()
    except OSError as error:
        raise BadFile(place, f"cannot be read: {error.strerror}", "name a file that this user can read") from None
    except UnicodeDecodeError:
        raise BadFile(place, "is not UTF-8", "save it as UTF-8") from None
    if not text:
        raise BadFile(place, "is empty", f"write what {name} would have into it")
    return text
