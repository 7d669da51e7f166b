# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "grpcio-tools==1.67.1 ; python_version < '3.14'",
#     "mypy-protobuf==3.7.0",
# ]
# ///
"""Generates the Python modules of all proto packages.

Run it as `make gen`; with `--check` it only compares (`make lint` does).

The pins above are the one place that names the generator. It is an old one on purpose: generated
code refuses to run under a gRPC or protobuf older than its generator, and runs under every newer
one. Its own protobuf conflicts with the project's, so `uv run --script` gives it an environment of
its own.

The messages of the wire live where protoc expects them, in `lowwater.v1`. Those of
journals belong to other distributions, so the import name of their folder replaces the one that
protoc writes.

Each folder's `__init__.py` keeps a digest of everything the folder depends on. `--check` compares
that first, then generates again and compares every file; where the generator has no wheel (Python
3.14 and later) the digest alone decides.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
ADVICE = "run: make gen"
GENERATOR_ENDS = (3, 14)  # the first Python without a wheel of the pinned grpcio-tools


class Tree(NamedTuple):
    """Where one proto package is generated to."""

    path: Path
    import_name: str
    package: str


TREES = (
    Tree(Path("client/src/lowwater/v1"), "lowwater.v1", "lowwater/v1"),
    Tree(Path("authority/src/lowwater_authority/records"), "lowwater_authority.records", "lowwater/journal/v1"),
    Tree(Path("regions/src/lowwater_regions/records"), "lowwater_regions.records", "lowwater/regions/journal/v1"),
)

INIT = '''"""Generated from proto/{package} by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 {digest}
"""
'''


def digest() -> str:
    """The sha256 of every .proto and of this script, which holds the pins."""
    total = hashlib.sha256()
    for path in [*sorted(PROTO.rglob("*.proto")), Path(__file__).resolve()]:
        content = path.read_bytes()
        total.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode() + content)
    return total.hexdigest()


def init_text(tree: Tree) -> str:
    """The docstring of the tree's package."""
    return INIT.format(package=tree.package, digest=digest())


def generate(tree: Tree, target: Path) -> None:
    """Write the modules of the tree to the folder `target`; exit when protoc refuses a source."""
    import grpc_tools.protoc

    output = target.with_name(f"{target.name}.protoc")
    output.mkdir()
    sources = sorted((PROTO / tree.package).glob("*.proto"))
    arguments = [f"-I{PROTO}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}"]
    plugins = [f"--python_out={output}", f"--mypy_out=quiet:{output}"]
    if grpc_tools.protoc.main(["protoc", *arguments, *plugins, *map(str, sources)]) != 0:
        sys.exit(f"protoc refused proto/{tree.package}: its message stands above")
    # A file without a service would get an empty module.
    services = [source for source in sources if re.search(r"^service ", source.read_text(), re.MULTILINE)]
    plugins = [f"--grpc_python_out={output}", f"--mypy_grpc_out=quiet:{output}"]
    if services and grpc_tools.protoc.main(["protoc", *arguments, *plugins, *map(str, services)]) != 0:
        sys.exit(f"the gRPC plugin refused proto/{tree.package}: its message stands above")

    shutil.move(output / tree.package, target)
    package = tree.package.replace("/", ".")
    module_import = re.compile(rf"^from {re.escape(package)} import", re.MULTILINE)
    stub_name = re.compile(rf"\b{re.escape(package)}\.(?=\w+_pb2\b)")
    for path in target.rglob("*.py"):
        path.write_text(module_import.sub(f"from {tree.import_name} import", path.read_text()))
    for path in target.rglob("*.pyi"):
        path.write_text(stub_name.sub(f"{tree.import_name}.", path.read_text()))

    (target / "__init__.py").write_text(init_text(tree))


def files(folder: Path) -> set[Path]:
    """The files below a folder, relative to it, without byte code."""
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def differences(tree: Tree, fresh: Path) -> list[str]:
    """The committed files that are not what the generator writes."""
    committed = ROOT / tree.path
    names = files(committed) | files(fresh)
    _, changed, missing = filecmp.cmpfiles(committed, fresh, sorted(map(str, names)), shallow=False)
    return [(tree.path / name).as_posix() for name in sorted(changed + missing)]


def check(scratch: Path) -> None:
    """Exit with 1, and the command to run, when the generator would write other code."""
    for tree in TREES:
        init = ROOT / tree.path / "__init__.py"
        if not init.is_file() or init.read_text() != init_text(tree):
            sys.exit(f"{tree.path} is not made from the present proto/ and scripts/generate_protos.py; {ADVICE}")
    if sys.version_info >= GENERATOR_ENDS:
        print("generated code: made from the present sources (generating it again needs Python 3.13 or older)")
        return
    for tree in TREES:
        generate(tree, scratch / tree.import_name)
        if changed := differences(tree, scratch / tree.import_name):
            sys.exit(f"not what the generator writes: {', '.join(changed)}; {ADVICE}")


def write(scratch: Path) -> None:
    """Replaces the committed trees, after all of them were generated."""
    if sys.version_info >= GENERATOR_ENDS:
        sys.exit(f"the generator needs Python 3.13 or older; run: uv run --python 3.13 --script {sys.argv[0]}")
    for tree in TREES:
        generate(tree, scratch / tree.import_name)
    for tree in TREES:
        shutil.rmtree(ROOT / tree.path, ignore_errors=True)
        shutil.copytree(scratch / tree.import_name, ROOT / tree.path)


def main() -> None:
    """Generates, or compares with `--check`."""
    parser = argparse.ArgumentParser(description="Generates the Python modules of all proto packages.")
    parser.add_argument("--check", action="store_true", help="only compare: exit 1 when the committed code differs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.check:
            check(Path(scratch))
        else:
            write(Path(scratch))


if __name__ == "__main__":
    main()
