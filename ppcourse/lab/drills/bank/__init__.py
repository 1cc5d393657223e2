"""The questions, a file a lesson. A number that is a result is computed where it stands, never typed.

Questions marked `asked` are known from what people report of interviews: of NVIDIA (DevTech AI intern, 2024), Tencent
(Hunyuan), Kuaishou, Pinduoduo and Meituan, and from posts on Nowcoder and 1point3acres. Which of them asked which
is not recorded here, so no card says it.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from ppcourse.lab.drills.question import Question


def everything() -> Iterator[Question]:
    """Every question of every lesson."""
    for module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        if module.startswith("lesson_"):
            yield from importlib.import_module(f"{__name__}.{module}").QUESTIONS
