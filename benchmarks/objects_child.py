"""A stand-in for S3 that answers requests to list, in pages of 1,000, and nothing else."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qs, urlsplit

_PAGE: Final = 1_000

_OBJECT: Final = (
    "<Contents><Key>{key}</Key><LastModified>2026-11-30T12:00:00.000Z</LastModified>"
    "<ETag>&quot;{number:032x}&quot;</ETag><Size>1000000</Size><StorageClass>STANDARD</StorageClass></Contents>"
)

_LIST: Final = (
    '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    "<Name>bucket</Name><Prefix>{prefix}</Prefix><KeyCount>{count}</KeyCount><MaxKeys>1000</MaxKeys>"
    "<IsTruncated>{more}</IsTruncated>{next}{objects}</ListBucketResult>"
)


def page(prefix: str, start: int, objects: int) -> bytes:
    """Return the answer to a request for the keys below ``prefix``, from ``start`` on."""
    end = min(start + _PAGE, objects)
    listed = "".join(
        _OBJECT.format(key=f"{prefix}day={number // 1_000:05}/part-{number:08}.json", number=number)
        for number in range(start, end)
    )
    following = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < objects else ""
    more = "true" if end < objects else "false"
    return _LIST.format(prefix=prefix, count=end - start, more=more, next=following, objects=listed).encode()


class _Store(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    pages: Final[dict[tuple[str, int], bytes]] = {}

    def do_GET(self) -> None:
        """Answer a request to list: the number of objects is the name of the directory."""
        query = parse_qs(urlsplit(self.path).query)
        prefix, start = query["prefix"][0], int(query.get("continuation-token", ["0"])[0])
        key = prefix, start
        if key not in self.pages:
            self.pages[key] = page(prefix, start, int(prefix.strip("/")))
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(self.pages[key])))
        self.end_headers()
        self.wfile.write(self.pages[key])
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the overridden method
        """Write nothing."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), _Store) as server:
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()
