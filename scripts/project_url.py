"""Copy the project's address, ``url`` of ``[tool.lowwater]`` in pyproject.toml, to other files.

``make gen`` writes it into the metadata of each distribution, the chart and the image; ``make
lint`` fails when one of them is out of date. While it is empty they name no address, since a dead
link is worse than none.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scripts.dist import DISTRIBUTIONS, ROOT

_URL: Final = re.compile(r"https://[A-Za-z0-9.-]+(?::\d+)?(?:/[A-Za-z0-9._~-]+)*")
_TABLE: Final = re.compile(r"\n\[project\.urls\]\n(?:[^\n]+\n)*")
_HOME: Final = re.compile(r"^home: .*\nsources:\n(?:  - .*\n)*", re.MULTILINE)
_LABEL: Final = re.compile(r' \\\n      org\.opencontainers\.image\.url="[^"]*"')


def project_url(root: Path = ROOT) -> str:
    """Return the address, "" when not set. Raises SystemExit for an invalid one."""
    url: str = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["lowwater"]["url"]
    if url and not _URL.fullmatch(url):
        msg = f"pyproject.toml: url of [tool.lowwater] is {url!r}; it has to be an https address without a slash at its end, or empty"
        raise SystemExit(msg)
    return url


def texts_of(root: Path, url: str) -> dict[Path, str]:
    """Return the text that each file must have."""
    files = {}
    for folder in DISTRIBUTIONS.values():
        path = root / folder / "pyproject.toml"
        table = f'\n[project.urls]\nHomepage = "{url}"\n' if url else ""
        bare = _TABLE.sub("", path.read_text(encoding="utf-8"))
        files[path] = bare.replace(
            "\n[tool.hatch.build.targets.wheel]", f"{table}\n[tool.hatch.build.targets.wheel]", 1
        )
    chart = root / "helm/lowwater/Chart.yaml"
    bare = _HOME.sub("", chart.read_text(encoding="utf-8"))
    home = f"home: {url}\nsources:\n  - {url}\n" if url else ""
    files[chart] = bare.replace("keywords: ", f"{home}keywords: ", 1)
    image = root / "container/Dockerfile"
    bare = _LABEL.sub("", image.read_text(encoding="utf-8"))
    revision = '      org.opencontainers.image.revision="${REVISION}"'
    label = f' \\\n      org.opencontainers.image.url="{url}"' if url else ""
    files[image] = bare.replace(revision, revision + label, 1)
    return files


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write the address, or check it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 when a file says something else"
    )
    args = parser.parse_args(arguments)
    url, other = project_url(root), []
    for path, text in texts_of(root, url).items():
        if path.read_text(encoding="utf-8") != text:
            other.append(path)
            if not args.check:
                path.write_text(text, encoding="utf-8")
    if args.check and other:
        names = ", ".join(str(path.relative_to(root)) for path in other)
        print(f"not what url of [tool.lowwater] says: {names}; run make gen", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
