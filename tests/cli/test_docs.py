"""The pages agree with the code: states, settings, exit codes, failure codes, invariants, commands."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.cli.failures import MEANING
from actors.settings import KindSettings, Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
WORD = re.compile(r"[a-z]+(?:_[a-z]+)+")


def rows(page: str) -> list[list[str]]:
    """The cells of every table row."""
    lines = [line for line in page.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_of_states_is_written_from_the_code() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "write_states.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_page_of_providers_is_written_from_the_registry() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "write_providers.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_every_setting_is_in_the_readme_with_its_default() -> None:
    told = {row[0].strip("`"): row[1].strip("`") for row in rows(README) if re.fullmatch(r"`[A-Z_]+`", row[0])}
    real = {}
    for name, field in Settings.model_fields.items():
        if name == "secrets":
            continue
        variable = field.alias or f"CALLKEEPER_{name.upper()}"
        default = field.default
        real[variable] = "\u2013" if default in (None, []) else str(default)
    assert told == real


def test_every_override_of_a_kind_is_in_the_readme() -> None:
    row = next(row for row in rows(README) if row[0] == "`CALLKEEPER_KINDS`")
    assert set(re.findall(r"`(\w+)`", row[2])) == set(KindSettings.model_fields)


def test_exit_codes_are_those_of_the_code() -> None:
    told = {row[0]: row[1] for row in rows(README) if re.fullmatch(r"\d", row[0])}
    assert told == {str(code.value): meaning for code, meaning in MEANING.items()}


def test_every_command_is_in_the_readme() -> None:
    from actors.cli.app import app

    for command in app.registered_commands:
        assert command.callback is not None
        assert f"`{command.callback.__name__}`" in README


def test_invariants_are_numbered_as_in_the_audit() -> None:
    audit = (ROOT / "migrations" / "versions" / "0002_audit.sql").read_text()
    told = [int(one) for one in re.findall(r"^(\d+)\. ", (DOCS / "invariants.md").read_text(), re.MULTILINE)]
    assert told == list(range(1, 16))
    assert {int(one) for one in re.findall(r"^select (\d+)\b", audit, re.MULTILINE)} == set(told) - {15}
    assert "select 15 as invariant" in (ROOT / "migrations" / "versions" / "0025_one_audit.sql").read_text()


def constants(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def codes_in(tree: ast.Module) -> Iterator[str]:
    """Strings in the places where a failure code stands."""
    takes_code = {
        function.name: [argument.arg for argument in function.args.args].index(name)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for name in ("code", "why")
        if name in [argument.arg for argument in function.args.args]
    }
    known = {"ProviderError": 0, "DownloadError": 0, "Failed": 0, "Decision": 1, "fail": 2, "give_back": 2}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            place = {**takes_code, **known}.get(name)
            if place is not None and len(node.args) > place:
                yield from constants(node.args[place])
            for keyword in node.keywords:
                if keyword.arg in ("error_code", "code", "why"):
                    yield from constants(keyword.value)
        elif isinstance(node, ast.Tuple):
            yield from verdict(node)
        elif isinstance(node, ast.Assign):
            yield from assigned(node)
        elif isinstance(node, ast.ClassDef) and node.name == "Recovery":
            yield from (value for value in constants(node) if value not in ("requeue", "resume"))


def verdict(node: ast.Tuple) -> Iterator[str]:
    """`"a_code", Remedy.X` and `"a_code", "words for people"`."""
    if len(node.elts) != 2 or not isinstance(node.elts[0], ast.Constant):
        return
    second = node.elts[1]
    is_remedy = isinstance(second, ast.Attribute) and getattr(second.value, "id", "") == "Remedy"
    is_words = " " in "".join(constants(second))
    if is_remedy or is_words:
        yield from (value for value in constants(node.elts[0]) if WORD.fullmatch(value))


def assigned(node: ast.Assign) -> Iterator[str]:
    target = node.targets[0]
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    if getattr(names[0], "id", "") == "code":
        # What is read out of somebody's answer is no code of ours.
        called = {id(inner) for call in ast.walk(node.value) if isinstance(call, ast.Call) for inner in ast.walk(call)}
        for one in ast.walk(node.value):
            if isinstance(one, ast.Constant) and id(one) not in called and WORD.fullmatch(str(one.value)):
                yield str(one.value)


def codes_of_the_code() -> set[str]:
    files = [*(ROOT / "providers").glob("*.py"), *(ROOT / "actors").glob("*.py"), *(ROOT / "actors/ai").glob("*.py")]
    found = {code for path in files for code in codes_in(ast.parse(path.read_text()))}
    return {code for code in found if re.fullmatch(r"[a-z]+(_[a-z]+)*", code)}


def test_every_failure_code_is_explained_and_nothing_else_is() -> None:
    told = [row[0].strip("`") for row in rows((DOCS / "failure-codes.md").read_text()) if row[0].startswith("`")]
    assert len(told) == len(set(told))
    # The one word that the store itself falls back to.
    assert set(told) == codes_of_the_code() | {"unknown"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_first_screen_has_what_a_newcomer_needs() -> None:
    first = "\n".join(README.splitlines()[:45])
    for needed in ("make demo", "make test", "from actors import job_type, submit", "callkeeper_audit.violations"):
        assert needed in first


def test_the_tests_that_the_page_of_reconciliation_names_exist() -> None:
    named = re.findall(r"`((?:\w+/)?test_\w+\.py)::(test_\w+)`", (DOCS / "reconciliation.md").read_text())
    assert len(named) > 90
    for file, test in named:
        folder = ROOT / "tests" if "/" in file else ROOT / "tests" / "passes"
        assert f"def {test}(" in (folder / file).read_text(), f"{file}::{test}"
