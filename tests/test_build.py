"""The generator of the notebooks, and that the notebooks in the repository are what it makes."""

import ast
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from ppcourse.lab import build
from ppcourse.lab.execute import execute
from ppcourse.lab.stubs import StubError, solved, stub

LESSONS = sorted((build.ROOT / "solutions").glob("[0-9][0-9]_*.py"))
each_lesson = pytest.mark.parametrize("source", LESSONS, ids=lambda path: path.stem)

LESSON = '''# %% [markdown]
# # A lesson
#
# <details><summary>Answer</summary>Folded.</details>

# %% tags=["nbval-check-output", "slow"]
print(1 + 1)

# %%
guess = 0.375  # solution


# %%
def order(p: int, m: int = 8) -> list[str]:
    """What to write."""
    # solution
    rows = [str(p)]
    return rows * m
    # end solution


order(1)
'''
STUB = '''def order(p: int, m: int = 8) -> list[str]:
    """What to write."""
    ...  # your code here


order(1)'''


@pytest.fixture
def lesson(tmp_path, monkeypatch) -> Path:
    """The source of a lesson in a repository of its own; executing it costs nothing."""
    source = tmp_path / "solutions" / "07_try.py"
    source.parent.mkdir()
    source.write_text(LESSON)
    monkeypatch.setattr(build, "execute", pretend_to_execute)
    return source


def pretend_to_execute(book) -> None:
    for n, cell in enumerate([cell for cell in book.cells if cell.cell_type == "code"], 1):
        cell.execution_count = n
        cell.outputs = [nbformat.v4.new_output("stream", text="2\n")]


def made(source: Path) -> tuple[Path, Path]:
    """The learner's notebook and the solved one."""
    return source.parent.parent / "notebooks" / "07_try.ipynb", source.with_suffix(".ipynb")


def run(source: Path, *argv: str) -> int:
    return build.main(argv, source.parent.parent)


# marks


def test_a_marked_block_becomes_one_line_at_its_indentation() -> None:
    cell = "for x in y:\n        # solution\n        a\n        b\n        # end solution\n        c"
    assert stub(cell) == "for x in y:\n        ...  # your code here\n        c"
    assert solved(cell) == "for x in y:\n        a\n        b\n        c"


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("x = 3", "x ="),
        ("x: int = f(a=3, b=[1])", "x: int ="),
        ("a, b = 1, 2", "a, b ="),
        ("rows[0] = 'a == b'", "rows[0] ="),
        ("    inner = 1 == 2", "    inner ="),
    ],
)
def test_a_marked_assignment_keeps_its_left_side(line: str, left: str) -> None:
    indented = "if True:\n" * line.startswith(" ")
    assert stub(f"{indented}{line}  # solution") == f"{indented}{left} ...  # your answer here"
    assert solved(f"{line}  # solution") == line


def test_what_is_not_marked_stays_as_it_is() -> None:
    cell = "%time\nx = 3  # the solution\n\ndef f():\n    return '# solution '"
    assert stub(cell) == solved(cell) == cell


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("# solution\nx", "`# solution` has no `# end solution`"),
        ("x\n# end solution", "`# end solution` stands where `# solution` is due"),
        ("# solution\n# solution", "`# solution` stands where `# end solution` is due"),
        ("print(3)  # solution", "`print(3)  # solution` is no assignment: put it between `# solution` and"),
        ("x += 3  # solution", "`x += 3  # solution` is no assignment"),
        ("if x == 3:  # solution\n    y", "`if x == 3:  # solution` is no assignment"),
        ("f(\n# solution\n1)\n# end solution", "without the solution the cell is no valid Python"),
    ],
)
def test_marks_that_cannot_be_followed_are_told(cell: str, sentence: str) -> None:
    with pytest.raises(StubError) as error:
        stub(cell)
    assert str(error.value).startswith(sentence)


# both notebooks


def test_a_learner_gets_stubs_and_no_outputs(lesson) -> None:
    assert run(lesson) == 0
    book = nbformat.read(made(lesson)[0], 4)
    assert [cell.source for cell in book.cells[2:]] == ["guess = ...  # your answer here", STUB]
    assert all(c.outputs == [] and c.execution_count is None for c in book.cells if c.cell_type == "code")


def test_the_solved_one_has_no_marks_and_is_executed(lesson) -> None:
    run(lesson)
    book = nbformat.read(made(lesson)[1], 4)
    assert [cell.source for cell in book.cells[2:3]] == ["guess = 0.375"]
    assert "solution" not in book.cells[3].source
    assert [cell.execution_count for cell in book.cells[1:]] == [1, 2, 3]


def test_outputs_are_compared_only_where_there_are_some(lesson) -> None:
    run(lesson)
    learners, ours = (nbformat.read(path, 4) for path in made(lesson))
    assert learners.cells[1].metadata == {"tags": ["slow"]}
    assert ours.cells[1].metadata == {"tags": ["nbval-check-output", "slow"]}


def test_both_are_valid_notebooks_that_name_their_kernel_and_no_version(lesson) -> None:
    run(lesson)
    for path in made(lesson):
        book = nbformat.read(path, 4)
        nbformat.validate(book)
        assert book.metadata.kernelspec.name == "python3"
        assert "version" not in book.metadata.language_info


def test_the_same_source_makes_the_same_bytes(lesson) -> None:
    run(lesson)
    first = [path.read_bytes() for path in made(lesson)]
    for path in made(lesson):
        path.unlink()
    run(lesson)
    assert [path.read_bytes() for path in made(lesson)] == first
    assert all(content.endswith(b"}\n") and b"\r" not in content for content in first)


def test_a_new_cell_leaves_the_ids_of_the_others(lesson) -> None:
    run(lesson)
    before = {cell.id for cell in nbformat.read(made(lesson)[0], 4).cells}
    lesson.write_text(LESSON.replace("# %%\nguess", "# %%\nprint(1 + 1)\n\n# %%\nprint(1 + 1)\n\n# %%\nguess"))
    run(lesson)
    after = [cell.id for cell in nbformat.read(made(lesson)[0], 4).cells]
    assert before < set(after)
    assert len(set(after)) == len(after) == len(before) + 2


def test_only_a_lesson_that_changed_is_executed_again(lesson, capsys) -> None:
    assert run(lesson) == run(lesson) == run(lesson, "--force", "7") == 0
    assert capsys.readouterr().out.splitlines() == [
        "07_try: executed in 0 s",
        "07_try: unchanged",
        "07_try: executed in 0 s",
    ]


def test_a_lesson_that_is_not_there_is_told(lesson, capsys) -> None:
    assert run(lesson, "9") == 1
    assert capsys.readouterr().err == "There is no lesson 9; there are 07.\n"


def test_a_source_with_wrong_marks_writes_nothing(lesson, capsys) -> None:
    lesson.write_text("# %%\nx = 1\n# solution\n")
    assert run(lesson) == 1
    assert capsys.readouterr().err == "07_try.py, cell `x = 1`: `# solution` has no `# end solution`.\n"
    assert not any(path.exists() for path in made(lesson))


def test_a_lesson_that_fails_keeps_its_last_good_notebook(lesson, monkeypatch, capsys) -> None:
    def fails(book) -> None:
        raise RuntimeError("cell `x` failed.")

    run(lesson)
    good = made(lesson)[1].read_bytes()
    monkeypatch.setattr(build, "execute", fails)
    lesson.write_text(LESSON + "\n# %%\nx\n")
    assert run(lesson) == 1
    assert capsys.readouterr().err == "07_try.py: cell `x` failed.\n"
    assert made(lesson)[1].read_bytes() == good


# --check


def test_check_agrees_with_what_was_just_built(lesson, capsys) -> None:
    run(lesson)
    capsys.readouterr()
    assert run(lesson, "--check") == 0
    assert capsys.readouterr().out == "The notebooks of 1 lessons are what their sources make.\n"


def test_check_sends_a_learner_who_worked_in_notebooks_to_work(lesson, capsys) -> None:
    run(lesson)
    path = made(lesson)[0]
    path.write_text(path.read_text().replace("...  # your answer here", "0.5"))
    capsys.readouterr()
    assert run(lesson, "--check") == 1
    assert capsys.readouterr().out == (
        "notebooks/07_try.ipynb is not what solutions/07_try.py makes: if you worked in it, move it to work/, "
        "the place for your own copy; then run `ppcourse build 07`.\n"
    )


def test_check_does_not_mind_outputs_in_notebooks(lesson) -> None:
    run(lesson)
    path = made(lesson)[0]
    book = nbformat.read(path, 4)
    pretend_to_execute(book)
    nbformat.write(book, path)
    assert run(lesson, "--check") == 0


def test_check_finds_a_changed_source_and_missing_outputs_and_writes_nothing(lesson, capsys) -> None:
    run(lesson)
    before = [path.read_bytes() for path in made(lesson)]
    lesson.write_text(LESSON.replace("print(1 + 1)", "print(1 + 2)"))
    assert run(lesson, "--check") == 1
    assert [path.read_bytes() for path in made(lesson)] == before
    lesson.write_text(LESSON)
    book = nbformat.read(made(lesson)[1], 4)
    book.cells[1].execution_count = None
    nbformat.write(book, made(lesson)[1])
    assert run(lesson, "--check") == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "solutions/07_try.ipynb is not what solutions/07_try.py makes: run `ppcourse build 07`."


# executing


@pytest.mark.thorough
def test_a_lesson_is_executed_in_an_empty_folder_with_progress_of_its_own(progress) -> None:
    cells = [
        "import os, sys, ppcourse as pp\npp.predict('7.1', 3)",
        "print(os.listdir(), os.environ['PPCOURSE_PROGRESS'] == " + repr(str(progress)) + ")",
        "print(sys.prefix, pp.__file__)",
    ]
    made = [nbformat.v4.new_code_cell(text) for text in cells]
    book = nbformat.v4.new_notebook(cells=made, metadata=build.METADATA)
    execute(book)
    [said, listed, paths] = ["".join(output.text for output in cell.outputs) for cell in book.cells]
    assert said == "✎ 7.1 you predict 3\n"
    assert listed == "[] False\n"
    assert paths.replace("\\", "/").startswith("<env> <course>/ppcourse/")
    assert book.metadata == build.METADATA
    assert [cell.metadata for cell in book.cells] == [{}, {}, {}]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("x = 1\n1 / 0", "cell `x = 1` failed.\n"),
        ("import os\nos._exit(3)", "cell `import os` failed.\n"),
        ("print('✗ 4.2 no')", "cell `print('✗ 4.2 no')` printed: ✗ 4.2 no"),
    ],
)
def test_a_cell_that_fails_is_named(cell: str, sentence: str) -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in ("ok = 1", cell, "after = 1")])
    with pytest.raises(RuntimeError) as error:
        execute(book)
    assert str(error.value).startswith(sentence)


# the lessons


def signatures(cell: str) -> dict[str, tuple[str, str | None, str | None]]:
    """By name: arguments, return type and docstring of every function and method of a cell."""
    tree = ast.parse(TransformerManager().transform_cell(cell))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    returns = {f: ast.unparse(f.returns) if f.returns else None for f in functions}
    return {f.name: (ast.unparse(f.args), returns[f], ast.get_docstring(f)) for f in functions}


def test_signatures_tell_a_changed_stub() -> None:
    assert signatures(STUB) == {"order": ("p: int, m: int=8", "list[str]", "What to write.")}
    for old, new in (("p: int", "q: int"), ("list[str]", "str"), ("What to", "How to")):
        assert signatures(STUB.replace(old, new)) != signatures(STUB)


@each_lesson
def test_the_notebooks_of_a_lesson_are_what_its_source_makes(source: Path) -> None:
    differing = build.check(source)
    if differing:
        pytest.fail("\n".join(differing), pytrace=False)


@each_lesson
def test_stubs_have_the_signatures_types_and_docstrings_of_their_solutions(source: Path) -> None:
    unsolved, answers = build.make(source).values()
    for ours, theirs in zip(unsolved.cells, answers.cells, strict=True):
        assert ours.id == theirs.id
        if ours.cell_type == "code":
            assert signatures(ours.source) == signatures(theirs.source)


@pytest.mark.thorough
@each_lesson
def test_a_lesson_leaves_something_to_do(source: Path) -> None:
    unsolved, answers = build.make(source).values()
    assert any(ours.source != theirs.source for ours, theirs in zip(unsolved.cells, answers.cells, strict=True))
    assert "# solution" not in nbformat.writes(answers)
