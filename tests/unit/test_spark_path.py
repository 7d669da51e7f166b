"""A path of Spark's in its three forms: none of them is ever taken for another one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lowwater_spark.checkpoint.location import spark_path
from lowwater_spark.checkpoint.spark_path import SparkPath

ODD = [
    "plain",
    "a blank",
    "a%20b",
    "100%",
    "t#1",
    "what?",
    "a[1]",
    "{a,b}",
    "a+b",
    "a:b",
    "k=v;w",
    "größe-日本",
    "back\\slash",
    "line\u2028break",
    "tab\there",
    "'quoted\"`",
]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize(("scheme", "authority"), [("", ""), ("file", ""), ("hdfs", "one:8020"), ("s3a", "bucket")])
def test_each_form_gives_the_path_back(name: str, scheme: str, authority: str) -> None:
    path = SparkPath(f"/data/{name}/x", scheme, authority)
    assert SparkPath.of_text(path.text) == path
    assert SparkPath.of_uri(path.uri) == path
    assert path.uri.isascii()


@pytest.mark.parametrize("name", ODD)
def test_a_local_path_stays_what_it_is(name: str) -> None:
    path = Path("/data") / name
    assert SparkPath.of_local(path).local == path
    assert SparkPath.of_text(str(path)).local == path
    assert SparkPath.of_text(spark_path(path).text).local == path
    assert SparkPath.of_uri(SparkPath.of_local(path).uri).local == path


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        # As Java writes them: letters beyond ASCII stay, and of slashes there may be one or three.
        ("file:/my%20warehouse/orders", "/my warehouse/orders"),
        ("file:///my%20warehouse/orders", "/my warehouse/orders"),
        ("file:/gr\u00f6\u00dfe/t%231", "/größe/t#1"),
        ("file:/a%2520b", "/a%20b"),
        ("file:/a+b:c", "/a+b:c"),
    ],
)
def test_a_uri_of_java_is_read(uri: str, path: str) -> None:
    assert SparkPath.of_uri(uri) == SparkPath(path, "file")


def test_a_path_elsewhere_is_not_local() -> None:
    assert SparkPath.of_text("hdfs://one:8020/t").local is None
    assert SparkPath.of_text("hdfs://one:8020/t").below("k=1/a.parquet").text == "hdfs://one:8020/t/k=1/a.parquet"


def test_spark_paths_are_converted_in_one_place() -> None:
    """Whoever escapes or unescapes by hand takes one form for another, sooner or later."""
    root = Path(__file__).parents[2] / "spark_listener/src/lowwater_spark"
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "urllib.parse"
        if {each.name for each in node.names} & {"unquote", "urlsplit", "urlparse"}
    }
    assert found == {"checkpoint/spark_path.py"}
