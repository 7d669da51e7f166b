"""Settings whose token stands in a file, which changes while a process runs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from lowwater import errors
from lowwater.core.file_settings import FileSettings


def test_a_token_counts_as_soon_as_its_file_has_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(FileNotFoundError):
        FileSettings("localhost", token_file=str(file)).read()
    for unusable in ("two\nlines", "\ufefftwo"):
        file.write_text(unusable, encoding="utf-8")
        with pytest.raises(errors.InvalidArgument, match=f"^{file} ") as refused:
            FileSettings("localhost", token_file=str(file)).read()
        assert refused.value.metadata["file"] == str(file)
        assert "two" not in repr((refused.value, refused.value.__context__))
    file.write_text("first\n")
    settings = FileSettings("localhost", token_file=str(file)).read()
    assert settings.metadata == (("authorization", "Bearer first"),)
    assert b"first" not in pickle.dumps(settings)
    file.write_text("second\n")
    assert settings.metadata == (("authorization", "Bearer second"),)
    for unusable in ("", "two\nlines", "\xff"):
        file.write_text(unusable, encoding="latin-1")
        assert settings.metadata == (("authorization", "Bearer second"),), "the last token read, not that of the start"
    file.unlink()
    assert settings.metadata == (("authorization", "Bearer second"),)
    assert not {"first", "second"} & set(repr(settings).replace("'", " ").split())
    file.write_text("third\n")
    assert settings.metadata == (("authorization", "Bearer third"),)
