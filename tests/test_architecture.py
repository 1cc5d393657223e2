"""The rooms and what may enter them, as the imports in the files say."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import ppcourse

PACKAGE = Path(ppcourse.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = ["schedules", "analysis", "runtime", "lab", "cli"]  # in the order in which they may be imported
FOLDERS = ["machine", "values", "links", "stages", "checkpoints", "processes"]  # of the runtime, in the same way
PICTURES = {"matplotlib", "ipywidgets"}

every_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))


def room_of(path: Path) -> str:
    """The room a file is in; "" for the package's own `__init__`."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return {"__init__": "", "__main__": "cli"}.get(first, first)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """The modules that a file imports, wherever in it, except for type checkers only."""
    waiting: list[ast.AST] = [tree_of(path)]
    found: set[str] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}, line {node.lineno}: import by the whole name"
            found.add(str(node.module))
    return frozenset(found)


def outside(path: Path) -> set[str]:
    """The packages that a file imports and that are neither ours nor Python's."""
    tops = {name.partition(".")[0] for name in imported(path)}
    return tops - set(sys.stdlib_module_names) - {"ppcourse"}


@every_module
def test_a_room_imports_only_from_rooms_before_it(path: Path) -> None:
    room = room_of(path)
    last = "runtime" if room == "" else room
    allowed = set(ROOMS[: ROOMS.index(last) + 1])
    ours = {name for name in imported(path) if name.partition(".")[0] == "ppcourse"}
    rooms = {name.split(".")[1] if "." in name else "ppcourse itself" for name in ours}
    assert rooms <= allowed | ({"ppcourse itself"} if room == "cli" else set())


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_the_runtime_imports_only_from_folders_before_it(folder: str) -> None:
    allowed = set(FOLDERS[: 1 + FOLDERS.index(folder)]) - ({"links"} if folder == "stages" else set())
    paths = list((PACKAGE / "runtime" / folder).rglob("*.py"))
    whole = {f"{name}." for path in paths for name in imported(path)}
    assert {other for other in FOLDERS for name in whole if name.startswith(f"ppcourse.runtime.{other}.")} <= allowed
    assert len(paths) > 1


def test_every_folder_of_the_runtime_is_one_of_them() -> None:
    assert {path.name for path in (PACKAGE / "runtime").iterdir() if path.is_dir()} - {"__pycache__"} == set(FOLDERS)


@every_module
def test_a_room_imports_only_what_belongs_there(path: Path) -> None:
    allowed = {"schedules": set(), "analysis": {"numpy"}, "": set()}
    room = room_of(path)
    if room in allowed:
        assert outside(path) <= allowed[room]
    elif room != "lab":
        assert not outside(path) & PICTURES


@every_module
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree_of(path))


@every_module
def test_modules_and_functions_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 250
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = 1 + body[-1].end_lineno - body[0].lineno if body else 0
            assert lines <= 40, f"{node.name} has {lines} lines, not counting its signature and docstring"


def test_every_file_is_in_a_room() -> None:
    assert {room_of(path) for path in MODULES} <= {"", *ROOMS}


def test_importing_the_package_is_light() -> None:
    heavy = "{'torch', 'numpy', 'matplotlib', 'ipywidgets', 'IPython'}"
    code = f"import sys, ppcourse; print(sorted({heavy} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_names_that_load_later_are_those_that_type_checkers_see() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    branches = [node for node in tree.body if isinstance(node, ast.If)]
    [guarded] = [node for node in branches if ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {alias.asname: node.module for node in guarded.body for alias in node.names}
    assert seen == ppcourse.LATER
    assert set(ppcourse.LATER) <= set(dir(ppcourse))


def test_a_name_that_is_not_there_is_said_so() -> None:
    with pytest.raises(AttributeError, match="module 'ppcourse' has no name 'simulat'"):
        _ = ppcourse.simulat
