"""The documentation says what is there: commands, links, code, errors, rules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from lowwater import errors

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (
    ROOT / "README.md",
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "monitoring/runbooks").glob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
    ROOT / "conformance/README.md",
    ROOT / "examples/README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
)
SOURCES = ("authority", "client", "page", "pipeline", "server", "regions", "spark_listener")
NAMING = (
    *(*SOURCES, "benchmarks", "conformance", "container", "examples", "helm", "integrations", "monitoring", "proto"),
    *("scripts", "tests"),
)
"""The folders whose files name pages: in errors, comments, alerts, values."""
PARTS = (*(f"{source}/src" for source in SOURCES), "scripts", "tests")
"""The folders of the modules that pages name."""
RULES = range(1, 12)

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
RULE = re.compile(r"^## (\d+)\. ([^\n]+)\n(.*?)(?=^## )", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"(?<![\w/-])((?:docs|monitoring/runbooks)/[\w/-]+\.md)(?:#([\w-]+))?")
SECTION = re.compile(r"'([^'\n]+)' in (docs/[\w/-]+\.md)")
MODULE = re.compile(r"`([\w./]+\.py)`")
TEST = re.compile(r"`(test_\w+)`")
LISTED = re.compile(r"`(tests/[^`]+\.py)`")
STEP = re.compile(r"^\| \d+ \| \[[^]]+\]\(([^)]+)\) \| `([\w.]+)` \|", re.MULTILINE)
FOLDER = re.compile(r">([\w./ -]+/)</text>")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in HEADING.findall(prose(page))}


def rules() -> dict[int, str]:
    text = (DOCS / "concepts/guarantees.md").read_text(encoding="utf-8")
    return {int(number): body for number, _, body in RULE.findall(text)}


def carriers(rule: int) -> set[str]:
    named = re.compile(rf"def test_rule_?{rule}_|class TestRule{rule}[A-Z]")
    return {name(path) for path in (ROOT / "tests").rglob("*.py") if named.search(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{name(page)} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors(linked), f"{name(page)} links to {target}, but {name(linked)} has no such heading"


def test_every_page_that_a_file_names_is_there() -> None:
    files = [path for folder in NAMING for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = {path: path.read_bytes().decode("utf-8", "replace") for path in [*files, *PAGES]}
    for path, text in texts.items():
        for page, anchor in NAMED.findall(text):
            assert (ROOT / page).is_file(), f"{name(path)} names {page}, which does not exist"
            assert not anchor or anchor in anchors(ROOT / page), (
                f"{name(path)} names {page}#{anchor}, which does not exist"
            )
        for section, page in SECTION.findall(text):
            assert section in HEADING.findall(prose(ROOT / page)), f"{name(path)} names {section!r} in {page}"


@pytest.mark.parametrize(
    "page", [DOCS / "concepts/design.md", DOCS / "concepts/guarantees.md", ROOT / "CONTRIBUTING.md"], ids=name
)
def test_modules_that_are_named_are_there(page: Path) -> None:
    modules = [f"/{name(path)}" for part in PARTS for path in (ROOT / part).rglob("*.py")]
    named = set(MODULE.findall(prose(page)))
    assert named
    assert not [module for module in named if not any(path.endswith(f"/{module}") for path in modules)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pages_name_modules_of_tests_and_no_single_tests(page: Path) -> None:
    assert not TEST.findall(page.read_text(encoding="utf-8"))


def test_each_step_of_a_tour_is_a_function_that_is_there() -> None:
    page = DOCS / "concepts/reading-the-code.md"
    steps = STEP.findall(page.read_text(encoding="utf-8"))
    assert len(steps) >= 50
    for path, function in steps:
        body = ast.parse((page.parent / path).read_text(encoding="utf-8")).body
        for part in function.split("."):
            nodes = [node for node in body if getattr(node, "name", None) == part]
            assert nodes, f"{path} has no {function}"
            body = nodes[0].body


def test_the_picture_of_the_rooms_names_folders_that_are_there() -> None:
    named = FOLDER.findall((DOCS / "pictures" / "rooms.svg").read_text(encoding="utf-8"))
    folders = [folder for names in named for folder in names.split()]
    assert len(folders) >= 20
    for folder in folders:
        places = (ROOT / folder, *ROOT.glob(f"*/src/*/{folder}"))
        assert any(place.is_dir() for place in places), folder


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_compile(page: Path) -> None:
    for number, (language, block) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
        if language == "python":
            compile(block, f"{name(page)}, block {number}", "exec")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_code_block_is_closed_and_names_its_language(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("\n```") == 2 * len(BLOCK.findall(text)), f"{name(page)} has an open code block"


def test_every_error_is_in_the_table_with_its_reason() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", (DOCS / "reference/client.md").read_text(), re.MULTILINE))
    assert rows == {kind.__name__: reason for reason, kind in errors.BY_REASON.items()}


def test_the_guarantees_state_all_rules() -> None:
    assert list(rules()) == list(RULES)
    for rule, body in rules().items():
        for part in ("**Promise.**", "**For you.**", "**How.**", "**Tests.**"):
            assert part in body, f"rule {rule} does not say: {part}"


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_tests_that_carry_its_name(rule: int) -> None:
    listed = set(LISTED.findall(rules()[rule]))
    assert listed, f"docs/concepts/guarantees.md lists no test of rule {rule}"
    assert listed <= carriers(rule), f"listed for rule {rule}, but no test there carries its name"


@pytest.mark.parametrize("picture", sorted((DOCS / "pictures").glob("*.svg")), ids=name)
def test_pictures_stand_on_their_own(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert "<title" in text
    assert "<desc" in text, "a picture needs a description for those who cannot see it"
    assert not re.search(r"https?://(?!www\.w3\.org/)", text), "a picture loads nothing from elsewhere"
