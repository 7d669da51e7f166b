"""The files of the status page, read once into memory: a request can name no other file."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lowwater_server.http import LEAST_GZIPPED

FOLDER: Final = Path(__file__).parent / "static"

TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
}
"""Content types by suffix. Any other file is served as plain text, so no browser runs it."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    content: bytes
    gzipped: bytes | None
    content_type: str
    etag: str
    """Changes with the content."""


def read(folder: Path = FOLDER) -> dict[str, Asset]:
    """Return the files below a folder by their path in it, with ``/`` between its parts."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _asset(path) for path in paths}


def _asset(path: Path) -> Asset:
    content = path.read_bytes()
    gzipped = gzip.compress(content, mtime=0) if len(content) >= LEAST_GZIPPED else None
    if gzipped is not None and len(gzipped) >= len(content):
        gzipped = None
    content_type = TYPES.get(path.suffix, "text/plain; charset=utf-8")
    return Asset(content, gzipped, content_type, hashlib.sha256(content).hexdigest()[:32])
