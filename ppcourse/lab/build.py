"""The notebooks of a lesson, made from its one source.

    solutions/04_compare.py ──┬─► notebooks/04_compare.ipynb   stubs, no outputs: what a learner gets
                              └─► solutions/04_compare.ipynb   solved and executed, with outputs

For authors. The source is jupytext's percent format, without a header:

    # %% [markdown]
    # ## Build 1F1B
    # Text, with a folded answer: <details><summary>Answer</summary> ... </details>

    # %% tags=["nbval-check-output"]
    print(pp.simulate(plan))                  tag a cell if its output is always the same: it is then compared

    # %%
    def order(p: int, m: int) -> list[str]:
        \"""What to write.\"""
        # solution
        return [...]                          a learner gets `...  # your code here` in place of this
        # end solution


    pp.grade("4.2", order)

    # %%
    guess = 0.375  # solution                 a learner gets `guess = ...  # your answer here`
    pp.predict("4.1", guess)

The unsolved notebook must run from top to bottom: what a stub leaves as `...` or None may go only into grade,
predict, or code under `if verdict:`. The solved one is executed in an empty folder, with an empty progress
file; a cell that prints a line with ✗ or ○ first fails the build. A lesson whose source cells are those of
its solved notebook is not executed again; --force does it anyway, as is due when the package has changed.
"""

import argparse
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode, v4

from ppcourse.lab.execute import execute
from ppcourse.lab.stubs import StubError, solved, stub

ROOT = Path(__file__).resolve().parents[2]
COMPARED = "nbval-check-output"
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}


class BuildError(Exception):
    """A lesson that cannot be made; the message is for its author."""


def main(argv: Sequence[str], root: Path = ROOT) -> int:
    """`ppcourse build [--check] [--force] [NN ...]`: the exit code."""
    parser = argparse.ArgumentParser("ppcourse build", description="Make the notebooks from solutions/*.py.")
    parser.add_argument("--check", action="store_true", help="only say which notebooks differ from their source")
    parser.add_argument("--force", action="store_true", help="execute a lesson even if its source is unchanged")
    parser.add_argument("lessons", nargs="*", metavar="NN", help="the lessons to make; all by default")
    options = parser.parse_args(argv)
    try:
        sources = _sources(root, options.lessons)
        if not options.check:
            for source in sources:
                build(source, options.force)
            return 0
        differing = [sentence for source in sources for sentence in check(source)]
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(differing) or f"The notebooks of {len(sources)} lessons are what their sources make.")
    return 1 if differing else 0


def build(source: Path, force: bool = False) -> None:
    """Write both notebooks of a lesson; the solved one only if it is not there already."""
    (learners, unsolved), (ours, answers) = make(source).items()
    _write(learners, unsolved)
    if not force and _agree(ours, answers):
        print(f"{source.stem}: unchanged")
        return
    began = time.perf_counter()
    try:
        execute(answers)
    except RuntimeError as error:
        raise BuildError(f"{source.name}: {error}") from None
    _write(ours, answers)
    print(f"{source.stem}: executed in {time.perf_counter() - began:.0f} s")


def check(source: Path) -> list[str]:
    """A sentence for each notebook of a lesson whose cells are not what the source makes."""
    (learners, unsolved), (ours, answers) = make(source).items()
    command = f"`ppcourse build {source.name[:2]}`"
    said = []
    if not _agree(learners, unsolved):
        advice = f"if you worked in it, move it to work/, the place for your own copy; then run {command}"
        said.append(f"notebooks/{learners.name} is not what solutions/{source.name} makes: {advice}.")
    if not _agree(ours, answers):
        said.append(f"solutions/{ours.name} is not what solutions/{source.name} makes: run {command}.")
    return said


def make(source: Path) -> dict[Path, NotebookNode]:
    """By path, the learner's notebook and the solved one, neither executed."""
    import jupytext

    cells = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent").cells
    folder = source.parent.parent / "notebooks"
    return {
        folder / f"{source.stem}.ipynb": _notebook(source, cells, stub),
        source.with_suffix(".ipynb"): _notebook(source, cells, solved, COMPARED),
    }


def _notebook(source: Path, cells: Sequence[NotebookNode], change: Callable[[str], str], *kept: str) -> NotebookNode:
    """The cells with their code changed; of the tags that ask for a comparison, those to be kept."""
    made, seen = [], Counter[str]()
    for cell in cells:
        text = cell.source
        try:
            new = change(text) if cell.cell_type == "code" else text
        except StubError as error:
            raise BuildError(f"{source.name}, cell `{text.partition(chr(10))[0]}`: {error}.") from None
        tags = [tag for tag in cell.metadata.get("tags", []) if tag != COMPARED or tag in kept]
        seen[text] += 1  # an id follows the text, so that a new cell leaves the others' ids alone
        identity = hashlib.sha256(f"{cell.cell_type} {seen[text]} {text}".encode()).hexdigest()[:12]
        kind: Any = v4.new_code_cell if cell.cell_type == "code" else v4.new_markdown_cell
        made.append(kind(new, id=identity, metadata={"tags": tags} if tags else {}))
    book: NotebookNode = v4.new_notebook(cells=made, metadata=METADATA)  # type: ignore[no-untyped-call]
    return book


def _sources(root: Path, numbers: Sequence[str]) -> list[Path]:
    everything = {path.name[:2]: path for path in sorted((root / "solutions").glob("[0-9][0-9]_*.py"))}
    unknown = [number for number in numbers if number.zfill(2) not in everything]
    if unknown:
        raise BuildError(f"There is no lesson {unknown[0]}; there are {', '.join(everything) or 'none'}.")
    return [everything[number.zfill(2)] for number in numbers] or list(everything.values())


def _agree(path: Path, book: NotebookNode) -> bool:
    """Has the file these cells, and outputs where it should have some?"""
    try:
        there = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, nbformat.ValidationError):
        return False
    executed = all(cell.execution_count for cell in there.cells if cell.cell_type == "code" and cell.source)
    return _sources_of(there) == _sources_of(book) and (executed or path.parent.name != "solutions")


def _sources_of(book: NotebookNode) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(cell.cell_type, cell.source, tuple(cell.metadata.get("tags", []))) for cell in book.cells]


def _write(path: Path, book: NotebookNode) -> None:
    """The same bytes for the same notebook, and the file untouched if it has them."""
    nbformat.validate(book)
    content = (v4.writes(book) + "\n").encode()  # type: ignore[no-untyped-call]
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
