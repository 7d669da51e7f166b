"""Secrets of the environment, or of a file that the environment names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater_authority.files.table import BadFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OWN_TOKEN: Final = ("LOWWATER_TOKEN",)
"""Variables with the token for an authority. The first that is set counts."""

GLOBAL_TOKEN: Final = ("LOWWATER_GLOBAL_TOKEN", *OWN_TOKEN)
"""Variables with the token for the global authority. The first that is set counts."""


def secret(name: str, environment: Mapping[str, str]) -> str:
    """Return the secret in the file that ``NAME_FILE`` names, else that of the variable ``NAME``.

    Empty where neither is set. A file is better: the user of a process can read its environment at
    any time, and every child gets a copy. Raises BadFile, which quotes nothing of the secret.
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


def token_settings(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of FileSettings, from the first name with a token or a token's file.

    >>> token_settings(("GLOBAL", "OWN"), {"OWN": "a", "OWN_FILE": "/run/own"})
    {'token': 'a', 'token_file': '/run/own'}
    """
    token = file = ""
    for name in names:
        token, file = environment.get(name, ""), environment.get(f"{name}_FILE", "")
        if token or file:
            break
    return {"token": token, "token_file": file}
