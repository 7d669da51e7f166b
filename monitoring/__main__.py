"""The command: ``python -m monitoring [--check]``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from monitoring.files import CHART, GENERATED, PAGE, generate, page
from monitoring.settings import Settings

ADVICE = "run: make gen"


def different(expected: dict[Path, str]) -> list[Path]:
    """Return the files that are missing or have another content than expected."""
    return [path for path, text in expected.items() if not path.is_file() or path.read_text() != text]


def stale(expected: dict[Path, str], folder: Path) -> list[Path]:
    """Return the files in the folder that are not generated any more."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path not in expected)


def main() -> int:
    """Write the files, or compare them."""
    parse = argparse.ArgumentParser(
        "python -m monitoring",
        description="Generate the Grafana dashboards and the Prometheus rules.",
        epilog="example: python -m monitoring --out /etc/lowwater --period-seconds 60 --late-seconds 120",
    )
    parse.add_argument(
        "--check", action="store_true", help="write nothing; fail when a file is not as it would be written"
    )
    parse.add_argument(
        "--out", type=Path, metavar="DIR", help="where to, with settings of your own (default: the repository)"
    )
    defaults = Settings()
    for field in fields(Settings):
        default = getattr(defaults, field.name)
        parse.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(default),
            default=default,
            help="default: %(default)s; see settings.py",
        )
    args = parse.parse_args()
    settings = Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)})
    if args.out is None and settings != defaults:
        parse.error("settings of your own need --out: what is committed is made with the defaults")
    folder = args.out or GENERATED
    generated = generate(settings)
    expected = {folder / name: text for name, text in generated.items()}
    extra = []
    if args.out is None:
        expected |= {CHART / name: text for name, text in generated.items()}
        expected[PAGE] = page(PAGE.read_text(), settings)
        extra = [*stale(expected, folder), *stale(expected, CHART)]
    if args.check:
        wrong = [*different(expected), *extra]
        for path in wrong:
            print(f"{path} is not what `python -m monitoring` writes; {ADVICE}", file=sys.stderr)
        return 1 if wrong else 0
    for path, text in expected.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in extra:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
