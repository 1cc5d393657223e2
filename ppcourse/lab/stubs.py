"""From a solved cell to the two cells made of it: the solution without its marks, and the learner's stub.

    def order(p, m):                    def order(p, m):
        \"""Docstring.\"""                   \"""Docstring.\"""
        # solution              ──►         ...  # your code here
        return ...
        # end solution

    rate = 3 / 11  # solution   ──►     rate = ...  # your answer here

Everything outside the marks is kept as it is: signature, types, docstring. A stub function returns None.
"""

import ast
import re

from IPython.core.inputtransformer2 import TransformerManager

BEGIN, END = "# solution", "# end solution"
ANSWER = re.compile(r"(?P<target>[^=#]*[\w\])\s]=)(?!=)\s*\S.*\s# solution")


class StubError(ValueError):
    """Marks that cannot be followed; the message is one sentence."""


def solved(source: str) -> str:
    """The cell without the marks."""
    lines = [line for line in source.split("\n") if line.strip() not in (BEGIN, END)]
    return "\n".join(re.sub(r"\s*# solution\s*$", "", line) for line in lines)


def stub(source: str) -> str:
    """The cell with what is between the marks taken out. Raises StubError if that leaves no valid code."""
    made: list[str] = []
    hidden = False
    for line in source.split("\n"):
        mark = line.strip()
        if mark in (BEGIN, END):
            if hidden is (mark == BEGIN):
                raise StubError(f"`{mark}` stands where `{END if hidden else BEGIN}` is due")
            hidden = not hidden
            if hidden:
                made.append(line[: line.index("#")] + "...  # your code here")
        elif not hidden:
            made.append(_without_answer(line))
    if hidden:
        raise StubError(f"`{BEGIN}` has no `{END}`")
    text = "\n".join(made)
    try:
        magics = TransformerManager()  # type: ignore[no-untyped-call]
        ast.parse(magics.transform_cell(text))
    except SyntaxError as error:
        raise StubError(f"without the solution the cell is no valid Python ({error.msg})") from None
    return text


def _without_answer(line: str) -> str:
    if not line.rstrip().endswith(f" {BEGIN}"):
        return line
    match = ANSWER.fullmatch(line.rstrip())
    if match is None:
        raise StubError(f"`{line.strip()}` is no assignment: put it between `{BEGIN}` and `{END}`")
    return f"{match['target']} ...  # your answer here"
