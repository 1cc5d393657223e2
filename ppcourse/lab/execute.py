"""Running a solved notebook: every cell ends, every exercise is ✓, and no output names a path of this machine."""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

CELL_LIMIT = 180  # seconds
WIDGET = "application/vnd.jupyter.widget-view+json"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def execute(book: NotebookNode) -> None:
    """Fill in the outputs of `book`. Raises RuntimeError for a cell that fails: a sentence, then what was printed."""
    metadata = dict(book.metadata)
    with tempfile.TemporaryDirectory() as folder:
        _run(book, Path(folder))
    book.metadata = metadata
    for cell, output in _outputs(book):
        _make_portable(output)
        missed = re.search(r"^[✗○] .*", output.get("text", ""), re.MULTILINE)
        if missed:
            raise RuntimeError(f"cell `{_first_line(cell)}` printed: {missed[0]}")


def _run(book: NotebookNode, folder: Path) -> None:
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellControlSignal, DeadKernelError

    ours = KernelSpecManager(kernel_dirs=[str(Path(sys.prefix, "share", "jupyter", "kernels"))])
    kernel = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=ours)
    environ = {**os.environ, "PPCOURSE_PROGRESS": str(folder / "progress.json")}
    options: dict[str, Any] = {"timeout": CELL_LIMIT, "record_timing": False, "store_widget_state": False}
    client = NotebookClient(book, km=kernel, coalesce_streams=True, **options)
    begun = [book.cells[0]]
    client.on_cell_execute = lambda cell, cell_index: begun.append(cell)
    (folder / "cwd").mkdir()
    with (folder / "log").open("w+") as log:
        try:
            client.execute(env=environ, cwd=str(folder / "cwd"), cleanup_kc=True, stderr=log)
        except (CellControlSignal, DeadKernelError) as error:
            log.seek(0)
            dead = isinstance(error, DeadKernelError)  # then only the log says why
            said = COLOURS.sub("", f"{error}{log.read() if dead else ''}").strip()
            raise RuntimeError(f"cell `{_first_line(begun[-1])}` failed.\n{said}") from None


def _outputs(book: NotebookNode) -> Iterator[tuple[NotebookNode, NotebookNode]]:
    for cell in book.cells:
        for output in cell.get("outputs", []):
            yield cell, output


def _make_portable(output: NotebookNode) -> None:
    """Paths of this machine, as they stand in tracebacks, become what a reader knows; of a widget its picture stays."""
    output.get("metadata", {}).pop("needs_background", None)
    if "image/png" in output.get("data", {}):  # a widget needs its kernel, and without it would say so in its place
        output.data.pop(WIDGET, None)
    if "text" in output:
        output.text = _portable(output.text)
    if "text/plain" in output.get("data", {}):
        output.data["text/plain"] = _portable(output.data["text/plain"])
    if "traceback" in output:
        output.traceback = [_portable(line) for line in output.traceback]


def _portable(text: str) -> str:
    text = re.sub(r"[^\s\"']*ipykernel_\d+[/\\]\d+\.py", "<cell>", text)
    for path, name in (
        (sys.prefix, "<env>"),
        (sys.base_prefix, "<python>"),
        (str(Path(__file__).parents[2]), "<course>"),
    ):
        text = text.replace(path, name)
    return text


def _first_line(cell: NotebookNode) -> str:
    return str(cell.source.partition("\n")[0])
