"""What the documentation shows is true: code runs, links lead somewhere, commands exist."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import click
import pytest

from fedpbc.algorithms import ALGORITHMS
from fedpbc.cli.app import command_tree
from fedpbc.engines import ENGINES
from fedpbc.experiments.comparison_plan import parse_plan
from fedpbc.experiments.configuration import Config
from fedpbc.experiments.overrides import configuration_values, split_items, split_list
from fedpbc.experiments.settings import (
    DataSection,
    General,
    ModelSection,
    TaskSection,
    TrainSection,
    command_options,
)
from fedpbc.links import SCHEMES
from fedpbc.options import options_of
from tests.doc_blocks import PAGES, ROOT, blocks, python_blocks

pytestmark = pytest.mark.slow


def commands(page: Path) -> list[list[str]]:
    """The words of every ``fedpbc`` command line, up to a pipe or the like."""
    found = []
    for block in blocks(page):
        if block.language not in {"sh", "console"}:
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>")
            lexer.whitespace_split = True
            words = list(lexer)
            ends = [k for k, word in enumerate(words) if set(word) <= set("|&;<>")]
            words = words[: min(ends, default=len(words))]
            if words and Path(words[0]).name == "fedpbc":
                found.append(words[1:])
    return found


def parsed(words: list[str]) -> click.Context:
    """The command, its options read but not run; a click error if there is no such option."""
    command, arguments = command_tree(), list(words)
    while isinstance(command, click.Group):
        name = arguments.pop(0)
        assert name in command.commands, f"there is no command {name!r} in 'fedpbc {words}'"
        command = command.commands[name]
    return command.make_context(name, arguments)


@pytest.fixture
def registries():
    """Pages register algorithms, schemes and engines; no other test may meet them."""
    kept = [(registry, dict(registry)) for registry in (ALGORITHMS, SCHEMES, ENGINES)]
    yield
    for registry, content in kept:
        registry.clear()
        registry.update(content)


def with_python(pages: list[Path]) -> list[Path]:
    return [page for page in pages if python_blocks(page)]


@pytest.mark.parametrize("page", with_python(PAGES), ids=lambda page: page.name)
@pytest.mark.usefixtures("registries")
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": f"page_{page.stem}"}
    for block in python_blocks(page):
        block.run(names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"", text):
        target = "".join(target)
        if re.match(r"[a-z]+:", target):
            continue
        file, _, heading = target.partition("#")
        place = page.parent / file if file else page
        assert place.exists(), f"{page.name} links to {target}"
        if heading:
            assert heading in headings(place), f"{page.name} links to {target}"


def headings(page: Path) -> set[str]:
    """The anchors of a page, made as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index


@pytest.mark.parametrize(
    ("page", "words"),
    [pytest.param(p, w, id=f"{p.stem}: {shlex.join(w)}") for p in PAGES for w in commands(p)],
)
def test_commands_exist(page, words):
    options = parsed(words).params
    if words[0] not in {"run", "compare"} or options["config"] or options["plugin"]:
        return
    # Not only the options: what they are set to must be right as well.
    keys = {option.key: options.get(option.name) for option in command_options()}
    for name in ("views", "track"):
        if options.get(name) is not None:
            keys[name] = split_list(name, options[name])
    if words[0] == "compare":
        keys |= {name: options[name] for name in ("seeds", "sweep")}
        keys["ceiling"] = options["ceiling"] or None
        if options["algorithms"] is not None:
            keys["algorithms"] = split_items(options["algorithms"])
    given = configuration_values(None, keys, options["set_"], trace=options["trace"])
    if words[0] == "run":
        Config.from_dict(given)
        return
    plan = parse_plan(given)
    for label in plan.entries:
        plan.checked(label)


def shown(default: object) -> str:
    """A default as the pages write it."""
    return f'"{default}"' if isinstance(default, str) else str(default).lower()


def test_every_option_is_documented_with_its_default():
    for page, options in (
        ("algorithms", [o for a in ALGORITHMS.values() for o in options_of(a.__init__).values()]),
        ("links", [o for s in SCHEMES.values() for o in s.options.values()]),
    ):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        for option in options:
            value = "" if option.required else f" = {shown(option.default)}"
            assert f"`{option.name}`{value}" in text, f"{page}.md does not say {option}"


def test_every_key_is_documented_with_its_default():
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    for section, kind in (
        ("", General),
        ("task.", TaskSection),
        ("data.", DataSection),
        ("model.", ModelSection),
        ("train.", TrainSection),
    ):
        for option in options_of(kind).values():
            row = rows[section + option.name]
            assert option.default is None or shown(option.default) in row, row


def test_wrong_commands_are_found():
    with pytest.raises(click.NoSuchOption):
        parsed(["run", "--algoritm", "fedpbc"])
    with pytest.raises(AssertionError):
        parsed(["runs"])


def test_the_gallery_shows_what_its_tool_makes():
    tool = runpy.run_path(str(ROOT / "tools" / "gallery.py"))
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert f"fedpbc {tool['COMPARISON']}\n" in text
    made = set(re.findall(r'"(\w[\w-]*\.png)"', (ROOT / "tools" / "gallery.py").read_text("utf-8")))
    stored = {picture.name for picture in (ROOT / "docs" / "pictures").iterdir()}
    shown = set(re.findall(r"\(pictures/([^)]+)\)", text))
    assert made - {"accuracy.png"} == stored == shown
    for name in stored:
        assert (ROOT / "docs" / "pictures" / name).stat().st_size < tool["LIMIT"]
