"""Folders of the Spark package that are called as functions that users call."""

from __future__ import annotations

import importlib
import inspect

import pytest

import lowwater_spark as lws


@pytest.mark.parametrize(("name", "inner"), [("attach", "attach.book"), ("drive", "drive.plan")])
def test_a_folder_never_hides_the_function_of_its_name(name: str, inner: str) -> None:
    importlib.import_module(f"lowwater_spark.{inner}")
    assert inspect.isfunction(getattr(lws, name))
