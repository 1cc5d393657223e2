"""The shape of a lesson: short cells, few words, pictures, and the same parts in each. Prints what it counts (-s)."""

import ast
import re
import statistics
from pathlib import Path
from typing import NamedTuple

import jupytext
import nbformat
import pytest

SOLUTIONS = Path(__file__).parents[1] / "solutions"
LESSONS = sorted(SOLUTIONS.glob("*.py"))

LEAST_WORDS = {"14": 50}  # for a code cell, where not 60: lesson 14's questions and answers are on its cards

every_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem[:2])


class Counts(NamedTuple):
    cells: int  # code cells
    median: float  # lines of a code cell
    ninth: float  # nine in ten have no more lines
    words: int
    each: float  # words for a code cell
    pictures: int

    def __str__(self) -> str:
        return (
            f"{self.cells} code cells, lines: median {self.median:g}, nine in ten at most {self.ninth:g};"
            f" {self.words} words, {self.each:.0f} a code cell; {self.pictures} pictures"
        )


def counted(path: Path) -> Counts:
    cells = jupytext.read(path).cells
    lines = [code_lines(cell.source) for cell in cells if cell.cell_type == "code"]
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    words = sum(bool(re.search(r"\w", word)) for word in re.sub(r"<[^>]+>", " ", text).split())
    ninth = statistics.quantiles(lines, n=10, method="inclusive")[-1]
    return Counts(len(lines), statistics.median(lines), ninth, words, words / len(lines), pictures(path))


def code_lines(source: str) -> int:
    """Lines with something in them; the marks of a solution are not the reader's."""
    lines = (line.strip() for line in source.splitlines())
    return sum(bool(line) and line not in ("# solution", "# end solution") for line in lines)


def pictures(path: Path) -> int:
    notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@every_lesson
def test_cells_words_and_pictures(path: Path) -> None:
    counts = counted(path)
    print(f"{path.stem}: {counts}")
    assert counts.median <= 6
    assert counts.ninth <= 15
    assert counts.words <= 2500
    assert LEAST_WORDS.get(path.stem[:2], 60) <= counts.each <= 110
    assert counts.pictures >= counts.cells // 8


@every_lesson
def test_every_lesson_has_the_same_parts(path: Path) -> None:
    text = path.read_text()
    assert re.search(r"^# # \d\d · ", text, re.M)
    assert "After this lesson you can" in text
    assert len(re.findall(r"^# - \*\*", text.partition("**You need**")[0], re.M)) == 3  # objectives, with their verbs
    minutes = re.search(r"\*\*Time\*\*\s+(?:#\s+)?(\d+)", text.replace("\n# ", " "))
    assert minutes
    assert int(minutes[1]) <= 60
    assert "pp.predict(" in text
    assert "**Explain.**" in text
    assert 2 <= len(re.findall(r"^# ### Exercise", text, re.M)) <= 4
    assert re.search(r"interview", text)
    assert re.search(r"^# ## (Sources|Exit questions|Three exit questions|Three questions)", text, re.M)


SCOPES = ast.FunctionDef | ast.ClassDef | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class Names(ast.NodeVisitor):
    """The names of the notebook that a cell binds, and those that it reads and has not bound itself before."""

    def __init__(self, source: str) -> None:
        self.bound: set[str] = set()
        self.read: set[str] = set()
        self.visit(ast.parse(source))

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, SCOPES):
            self._look_into(node)
            return
        parts = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Assign | ast.For):  # their targets come first, but are bound last
            given = node.value if isinstance(node, ast.Assign) else node.iter
            parts.sort(key=lambda part: part is not given)
        for part in parts:
            self.visit(part)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.bound.add(node.id)
        elif node.id not in self.bound:
            self.read.add(node.id)

    def _look_into(self, scope: ast.AST) -> None:
        if isinstance(scope, ast.FunctionDef | ast.ClassDef):
            self.bound.add(scope.name)
        inside = [part for part in ast.walk(scope) if isinstance(part, ast.Name)]
        own = {part.id for part in inside if isinstance(part.ctx, ast.Store)}
        own |= {part.arg for part in ast.walk(scope) if isinstance(part, ast.arg)}
        self.read |= {part.id for part in inside} - own - self.bound


@every_lesson
def test_what_waits_for_an_exercise_finds_what_it_needs_when_later_cells_have_run(path: Path) -> None:
    """Who runs all cells first and solves then runs such a cell once more: nothing that it reads may be another's."""
    cells = [Names(cell.source) for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    solved = set(re.findall(r"^(\w+) = pp\.grade\(", path.read_text(), re.M))
    assert solved
    for n, cell in enumerate(cells):
        if cell.read & solved:
            later = set().union(*(after.bound for after in cells[n + 1 :]))
            assert not cell.read & later, (n, cell.read & later)
