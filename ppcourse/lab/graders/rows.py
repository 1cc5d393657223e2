"""Reading a row of actions that a learner's function returned."""

from typing import Any

from ppcourse.schedules.action import Action, Op


def read_row(
    given: Any, example: str, negative: str = "; stages and microbatches count from 0."
) -> tuple[Action, ...] | str:
    """The row that an answer stands for, or what is wrong with it, as the end of a sentence.

    negative   what to say after the name of an action with a number below 0
    """
    if not isinstance(given, str | list | tuple):
        return f"returns {given!r:.60}; return a list of actions, as in {example}."
    row = []
    for cell in given.split() if isinstance(given, str) else given:
        if not isinstance(cell, Action) and "-" in str(cell):
            return f"names {cell}{negative}"
        try:  # an Action may have been made with "F" for Op.F
            row.append(cell._replace(op=Op(cell.op)) if isinstance(cell, Action) else Action.parse(str(cell)))
        except ValueError as error:
            return f"returns a row in which {error}"
    return tuple(row)
