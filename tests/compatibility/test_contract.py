"""proto/ keeps what the releases promised: `buf breaking` against their images notices what does not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from tests.compatibility.environments import ROOT, Environment, clean_environ
from tests.kit.program import run_program

PROTO = ROOT / "proto"
BUF = str(Path(sys.executable).with_name("buf"))
IMAGES = sorted((PROTO / "released").glob("*.binpb"))
BROKEN = 100
"""The exit code of buf for findings."""

BREAKS = {
    "a field removed": ("v1/types.proto", "  uint64 ranges = 10;\n", "", '"10" with name "ranges"'),
    "another type": ("v1/types.proto", "sfixed64 low_micros = 5;", "int64 low_micros = 5;", '"low_micros"'),
    "a field of the journal removed": ("journal/v1/journal.proto", "  string identity = 7;\n", "", '"identity"'),
}


def breaking(proto: Path, image: Path) -> subprocess.CompletedProcess[str]:
    command = [BUF, "breaking", str(proto), "--against", str(image)]
    return run_program(command, cwd=ROOT)


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_the_contract_keeps_what_was_released(image: Path) -> None:
    done = breaking(PROTO, image)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_contract_is_noticed(what: str, tmp_path: Path) -> None:
    file, old, new, named = BREAKS[what]
    proto = tmp_path / "proto"
    shutil.copytree(PROTO, proto)
    source = proto / "lowwater" / file
    text = source.read_text()
    assert text.count(old) == 1
    source.write_text(text.replace(old, new))
    done = breaking(proto, IMAGES[-1])
    assert done.returncode == BROKEN, done.stderr
    assert named in done.stdout
    assert source.name in done.stdout


def test_an_image_is_the_contract_of_the_released_wheels(old: Environment) -> None:
    """Their generated code has every message of the image, field by field."""
    version = old.versions()["lowwater"]
    image = FileDescriptorSet.FromString((PROTO / f"released/{version}.binpb").read_bytes())
    expected = {file.name: file for file in image.file if file.package.startswith("lowwater.")}
    assert len(expected) >= 6
    for name, released_file in expected.items():
        package = "lowwater_authority" if "journal" in name else "lowwater"
        module = f"{package}._pb.{name.removesuffix('.proto').replace('/', '.')}_pb2"
        if version != "0.1.0":
            module = module.replace("._pb.lowwater.journal.v1.", ".records.").replace("._pb.lowwater.", ".")
        code = f"import sys, {module} as m; sys.stdout.buffer.write(m.DESCRIPTOR.serialized_pb)"
        done = subprocess.run([old.python, "-I", "-c", code], capture_output=True, check=True, env=clean_environ())
        built = FileDescriptorProto.FromString(done.stdout)
        assert _plain(built) == _plain(released_file), name


def _plain(file: FileDescriptorProto) -> FileDescriptorProto:
    """Without the JSON names, which only buf writes, and the extensions of its images."""
    file.DiscardUnknownFields()
    for message in file.message_type:
        for kind in (message, *message.nested_type):
            for field in kind.field:
                field.ClearField("json_name")
    return file


def test_the_contract_names_packages_of_go_and_java() -> None:
    for source in sorted((PROTO / "lowwater/v1").glob("*.proto")):
        for option in (
            'go_package = "lowwater/v1;lowwaterv1"',
            "java_multiple_files = true",
            'java_package = "lowwater.v1"',
        ):
            assert f"\noption {option};\n" in source.read_text(), f"{source.name} lacks: {option}"
