"""Checking exercises: one line, never an exception, whatever the learner's code does; progress that is kept."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ppcourse.analysis.simulate import simulate
from ppcourse.lab import graders, guard, progress
from ppcourse.lab.exercises import grade
from ppcourse.lab.gantt_text import gantt_text
from ppcourse.lab.graders import grader
from ppcourse.runtime.errors import RankError
from ppcourse.schedules import build
from ppcourse.schedules.action import Action, Op

LIMIT = 0.3


@pytest.fixture(autouse=True)
def saved(tmp_path, monkeypatch) -> Path:
    """An empty progress file, and lesson 99 with two exercises that only tests know."""
    monkeypatch.setenv("PPCOURSE_PROGRESS", str(tmp_path / "deep" / "progress.json"))
    graders.exercises()  # what the lessons register must not go into the copy
    monkeypatch.setattr(graders, "registered", dict(graders.registered))
    monkeypatch.setattr(progress, "warned", set())

    @grader("99.1", minutes=5, difficulty=1, limit=LIMIT)
    def double_a_number(answer) -> str | None:
        """Twice every number up to 8.

        Not part of the fact.
        """
        wrong = [n for n in range(9) if answer(n) != 2 * n]
        return f"of {wrong[0]} it makes {answer(wrong[0])}, not {2 * wrong[0]}" if wrong else None

    @grader("99.10", minutes=10, difficulty=3, limit=LIMIT)
    def order_two_ranks(answer) -> str | None:
        """The order of GPipe."""
        plan = build("gpipe", p=2, m=2)
        return None if answer == plan.to_text() else f"not this\n{gantt_text(simulate(plan))}"

    return tmp_path / "deep" / "progress.json"


def right(n):
    return 2 * n


def lines(capsys) -> list[str]:
    return capsys.readouterr().out.splitlines()


# ○ ✗ ✓


def a_stub(n: int) -> int:
    """What to write."""
    ...  # your code here  # noqa: PIE790


def another_stub(n):
    raise NotImplementedError


@pytest.mark.parametrize("answer", [..., None, (1, ...), [...], {"a": ...}, another_stub, lambda n: ...])
def test_what_is_not_there_yet_is_unsolved(answer, saved, capsys) -> None:
    verdict = grade("99.1", answer)
    assert verdict.state == "unsolved"
    assert not verdict
    assert lines(capsys)[0].startswith("○ 99.1 not solved yet")
    assert not saved.exists()


def test_a_function_that_returns_nothing_is_unsolved_and_told_so(capsys) -> None:
    assert grade("99.1", a_stub).state == "unsolved"
    assert lines(capsys) == ["○ 99.1 not solved yet (a_stub(0) returns None)"]


def test_a_function_that_returns_something_first_is_wrong_and_not_unsolved(capsys) -> None:
    assert grade("99.1", lambda n: 0 if n == 0 else None).state == "wrong"


def test_a_wrong_answer_gets_one_sentence(capsys) -> None:
    assert not grade("99.1", lambda n: n)
    assert lines(capsys) == ["✗ 99.1 of 1 it makes 1, not 2"]


def test_a_picture_may_follow_the_sentence(capsys) -> None:
    assert not grade("99.10", "0F0")
    first, *picture = lines(capsys)
    assert first == "✗ 99.10 not this"
    assert picture[2:] == ["rank 0  F0 F1 .. .. .. B0--- B1---", "rank 1  .. F0 F1 B0--- B1--- .. .."]


def test_a_right_answer_gets_the_fact_and_is_true(capsys) -> None:
    verdict = grade("99.1", right)
    assert verdict
    assert lines(capsys) == ["✓ 99.1 Twice every number up to 8"]
    assert repr(verdict) == "✓ 99.1 Twice every number up to 8"


def test_a_verdict_is_not_shown_twice_in_a_notebook() -> None:
    from IPython.core.formatters import DisplayFormatter

    assert DisplayFormatter().format(grade("99.1", right)) == ({}, {})


def test_a_number_that_is_no_exercise_is_told_which_are(capsys) -> None:
    assert not grade("99.2", 1)
    assert not grade("98.1", 1)
    assert not grade("first", 1)
    known = ", ".join(map(str, graders.lessons()))
    assert lines(capsys) == [
        "? 99.2 is no exercise; lesson 99 has 99.1, 99.10",
        f"? 98.1 is no exercise; lessons with exercises: {known}",
        f"? first is no exercise; lessons with exercises: {known}",
    ]


def test_exercises_that_cannot_be_loaded_are_told_so(monkeypatch, capsys) -> None:
    monkeypatch.setattr(graders, "exercises", lambda lesson: 1 // 0)
    assert not grade("99.1", right)
    assert lines(capsys) == [
        "? 99.1 the exercises could not be loaded: ZeroDivisionError: integer division or modulo by zero"
    ]


# whatever the code does


def in_a_cell(source: str):
    """The function `answer` as a cell of a notebook defines it, its lines known to linecache as there."""
    from linecache import cache

    name = f"/tmp/ipykernel_1/{abs(hash(source))}.py"
    cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict = {"time": time, "sys": sys, "queue": queue}
    exec(compile(source, name, "exec"), space)
    return space["answer"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return [1][n + 5]", "answer(0) raises IndexError: list index out of range, at line 2 of your cell: "),
        ("sys.exit('bye')", "answer(0) raises SystemExit: bye, at line 2 of your cell: "),
        ("raise KeyboardInterrupt", "answer(0) raises KeyboardInterrupt, at line 2 of your cell: "),
        ("return answer(n)", "answer(0) raises RecursionError: maximum recursion depth exceeded, at line 2 of "),
    ],
)
def test_an_exception_is_told_with_its_call_and_its_place(body: str, said: str, capsys) -> None:
    assert not grade("99.1", in_a_cell(f"def answer(n):\n    {body}\n"))
    [line] = lines(capsys)
    assert line.startswith(f"✗ 99.1 {said}")
    assert line.endswith(body)


def test_the_place_is_the_learners_last_line_not_the_librarys(capsys) -> None:
    grade("99.1", in_a_cell("import json\ndef answer(n):\n    return json.loads('x')\n"))
    assert lines(capsys)[0].endswith(", at line 3 of your cell: return json.loads('x')")


def test_the_call_is_the_one_that_failed(capsys) -> None:
    grade("99.1", in_a_cell("def answer(n):\n    return 0 // (3 - n) + 2 * n\n"))
    assert "answer(3) raises ZeroDivisionError" in lines(capsys)[0]


def test_an_answer_that_is_no_function_cannot_be_checked(capsys) -> None:
    class Call:
        def __call__(self, n):
            raise SilentError

    assert not grade("99.1", 5)
    assert lines(capsys) == ["✗ 99.1 your answer is 5, and this exercise asks for a function"]
    assert not grade("99.1", Call())
    assert lines(capsys) == ["✗ 99.1 your code raises SilentError"]


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


def test_the_error_of_a_rank_comes_with_that_ranks_traceback(capsys) -> None:
    error = RankError(1, Action(1, Op.F, 0), "ValueError: boom", "Traceback ...\nValueError: boom")

    def fails(n):
        raise error

    assert not grade("99.1", fails)
    assert capsys.readouterr().out == f"✗ 99.1 {error}\n"
    assert "Traceback ..." in str(error)


ENDLESS = {
    "a loop": "while True: pass",
    "that swallows exceptions": "while True:\n        try: time.sleep(0)\n        except Exception: pass",
    "that swallows everything": "while True:\n        try: work(n)\n        except: pass",
    "that swallows everything twice": (
        "while True:\n        try:\n            try: work(n)\n            except: pass\n        except: pass"
    ),
    "in a sleep": "time.sleep(1000)",
    "in a lock": "queue.Queue().get()",
}


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no signal can end a wait here")
@pytest.mark.parametrize("body", ENDLESS.values(), ids=list(ENDLESS))
def test_what_never_ends_is_ended(body: str, capsys) -> None:
    source = f"def work(n):\n    for i in range(10**7): n += i\n\ndef answer(n):\n    {body}\n"
    began = time.monotonic()
    assert not grade("99.1", in_a_cell(source))
    assert time.monotonic() - began < LIMIT + 10
    [line] = lines(capsys)
    assert line.startswith(f"✗ 99.1 answer(0) still runs after {LIMIT} s, at line ")
    assert " of your cell: " in line


@pytest.mark.parametrize("body", list(ENDLESS.values())[:2], ids=list(ENDLESS)[:2])
def test_what_never_ends_is_ended_outside_the_main_thread_too(body: str, capsys) -> None:
    verdicts = []
    answer = in_a_cell(f"def answer(n):\n    {body}\n")
    thread = threading.Thread(target=lambda: verdicts.append(grade("99.1", answer)), daemon=True)
    thread.start()
    thread.join(60)
    assert [verdict.state for verdict in verdicts] == ["wrong"]
    assert f"answer(0) still runs after {LIMIT} s, at line " in lines(capsys)[0]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such timer")
def test_nothing_stays_behind_a_check(monkeypatch) -> None:
    rung = []
    usual = signal.signal(signal.SIGALRM, lambda *_: rung.append(True))
    left = signal.setitimer(signal.ITIMER_REAL, 100)
    try:
        tracer, interrupt = sys.gettrace(), signal.getsignal(signal.SIGINT)
        grade("99.1", in_a_cell("def answer(n):\n    while True: pass\n"))
        assert sys.gettrace() is tracer
        assert signal.getsignal(signal.SIGINT) is interrupt
        assert 90 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100
        signal.raise_signal(signal.SIGALRM)
        assert rung == [True]
    finally:
        signal.signal(signal.SIGALRM, usual)
        signal.setitimer(signal.ITIMER_REAL, *left)


LEFT = {
    "gradients off": "torch.set_grad_enabled(False)",
    "a dtype": "torch.set_default_dtype(torch.float64)",
    "a counter": "FlopCounterMode(display=False).__enter__()",
    "a function mode": "torch.device('meta').__enter__()",
}


@pytest.mark.parametrize("then", ["while True: pass", "1 / 0", "return 3"])
@pytest.mark.parametrize("body", LEFT.values(), ids=list(LEFT))
def test_torch_is_as_before_a_check(body: str, then: str) -> None:
    source = (
        f"import torch\nfrom torch.utils.flop_counter import FlopCounterMode\ndef answer(n):\n    {body}\n    {then}\n"
    )
    assert not grade("99.1", in_a_cell(source))
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (True, torch.float32)
    assert torch.ones(2).device.type == "cpu"
    assert not _get_current_dispatch_mode_stack()
    assert not torch.nn.modules.module._has_any_global_hook()


def test_a_real_ctrl_c_comes_through(monkeypatch) -> None:
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            grade("99.1", lambda n: os.kill(os.getpid(), signal.SIGINT) or time.sleep(5))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, usual)


@pytest.mark.thorough
def test_in_a_kernel_a_check_prints_once_ends_a_loop_and_names_the_line_of_the_cell() -> None:
    from nbformat import v4

    from ppcourse.lab.execute import execute

    define = (
        "import ppcourse as pp\nfrom ppcourse.lab.graders import grader\n"
        '@grader("99.1", minutes=1, difficulty=1, limit=3)\ndef check(answer):\n    """Fact."""\n    answer(0)\n'
    )
    wrong = 'def f(n):\n    return 1 // n\n\npp.grade("99.1", f)'
    endless = 'def f(n):\n    while True:\n        try: pass\n        except: pass\n\npp.grade("99.1", f)'
    book = v4.new_notebook(cells=[v4.new_code_cell(text) for text in (define, wrong, endless, "print('on')")])
    with pytest.raises(RuntimeError, match=r"printed: ✗ 99\.1"):
        execute(book)
    printed = [[output.get("text") for output in cell.outputs] for cell in book.cells]
    zero = "ZeroDivisionError: integer division or modulo by zero"
    assert printed[1] == [f"✗ 99.1 f(0) raises {zero}, at line 2 of your cell: return 1 // n\n"]
    [[late]] = printed[2:3]
    assert late.startswith("✗ 99.1 f(0) still runs after 3 s, at line ")
    assert printed[3] == ["on\n"]


def test_a_ring_outside_the_learners_code_is_no_place_to_tell(monkeypatch) -> None:
    places = iter(["", "line 2 of your cell: while True:", "line 4 of your cell: except: pass"])
    monkeypatch.setattr(guard, "last_own_line", lambda frames: next(places))
    bell = guard.Bell()
    for _ in range(3):
        bell.ring(None)
    assert (bell.rings, bell.place) == (3, "line 2 of your cell: while True:")


def test_importing_the_checks_is_light() -> None:
    code = "import sys, ppcourse.lab.exercises; print({'torch', 'numpy', 'matplotlib', 'IPython'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\n"


# the registry


def test_every_exercise_of_the_course_can_be_told_and_is_unsolved_at_first(capsys) -> None:
    for number, exercise in graders.exercises().items():
        assert exercise.fact
        assert 1 <= exercise.difficulty <= 5
        assert grade(number, ...).state == "unsolved"


def test_a_check_says_what_is_right_and_stands_alone() -> None:
    with pytest.raises(ValueError, match="no docstring"):
        grader("99.3", minutes=1, difficulty=1)(lambda answer: None)
    with pytest.raises(ValueError, match=r"Exercise 99\.1 has two checks"):
        grader("99.1", minutes=1, difficulty=1)(another_check)


def test_exercises_are_listed_by_lesson_and_in_order(monkeypatch) -> None:
    assert list(graders.exercises(99)) == ["99.1", "99.10"]
    grader("99.2", minutes=1, difficulty=1)(another_check)
    assert list(graders.exercises(99)) == ["99.1", "99.2", "99.10"]


def another_check(answer) -> None:
    """A fact."""


# progress


def test_tries_are_counted_and_solved_stays_solved(saved) -> None:
    for answer in (lambda n: n, right, lambda n: n):
        grade("99.1", answer)
    assert json.loads(saved.read_text())["exercises"] == {"99.1": {"solved": True, "tries": 2}}


def test_a_prediction_is_saved_and_printed(saved, capsys) -> None:
    progress.predict("3.1", 0.375)
    progress.predict("3.2", [4, 3, 2, 1])
    assert lines(capsys) == ["✎ 3.1 you predict 0.375", "✎ 3.2 you predict 4, 3, 2, 1"]
    assert progress.prediction("3.1") == 0.375
    assert progress.prediction("3.2") == [4, 3, 2, 1]
    assert progress.prediction("3.3") is None


@pytest.mark.parametrize("value", [..., None])
def test_a_prediction_that_is_not_there_yet_is_asked_for(value, saved, capsys) -> None:
    progress.predict("3.1", value)
    assert lines(capsys) == ["○ 3.1 predict first: replace ... with a number"]
    assert not saved.exists()


@pytest.mark.parametrize("value", ["0.3", [1, "a"], [], float("nan"), object(), True, [[1]]])
def test_a_prediction_that_is_no_number_is_not_saved(value, saved, capsys) -> None:
    progress.predict("3.1", value)
    assert lines(capsys)[0].startswith("○ 3.1 a prediction is a number")
    assert not saved.exists()


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"exercises": 3, "predictions": {}}', "\x00", '{"exercises": {"4.1": 5}}']
)
def test_a_damaged_file_is_put_aside_with_one_warning(content: str, saved, capsys) -> None:
    saved.parent.mkdir()
    saved.write_text(content)
    assert grade("99.1", right)
    assert grade("99.1", right)
    assert saved.with_suffix(".broken").read_text() == content
    assert json.loads(saved.read_text())["exercises"] == {"99.1": {"solved": True, "tries": 1}}
    assert capsys.readouterr().err == (
        f"Your progress file {saved} is damaged: it is kept as progress.broken, and a new one begins.\n"
    )


def test_an_empty_file_is_a_beginning(saved, capsys) -> None:
    saved.parent.mkdir()
    saved.touch()
    assert grade("99.1", right)
    assert capsys.readouterr().err == ""


def test_what_cannot_be_written_is_kept_in_memory_with_one_warning(saved, capsys) -> None:
    saved.parent.write_text("a file where a folder should be")
    progress.predict("3.1", 0.5)
    assert grade("99.1", right)
    assert progress.prediction("3.1") == 0.5
    assert progress.load()["exercises"]["99.1"]["solved"]
    [warning] = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"Your progress cannot be saved in {saved}")


def test_a_device_is_never_replaced_by_a_file(monkeypatch, capsys) -> None:
    device = Path(os.devnull)
    monkeypatch.setattr(progress, "path", lambda: device)
    monkeypatch.setattr(progress, "unsaved", {})
    progress.predict("3.1", 0.5)
    assert not device.is_file()
    assert "(not a file that can be read)" in capsys.readouterr().err


def test_notebooks_that_save_at_once_lose_nothing(saved) -> None:
    code = "import sys; from ppcourse.lab.progress import record\nfor n in sys.argv[1:]: record(n, True)"
    numbers = [[f"{lesson}.{n}" for n in range(20)] for lesson in (1, 2, 3)]
    children = [subprocess.Popen([sys.executable, "-c", code, *some]) for some in numbers]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    assert len(progress.load()["exercises"]) == 60


def test_the_summary_lists_every_exercise(monkeypatch, capsys) -> None:
    monkeypatch.setattr(graders, "lessons", lambda: [99])
    monkeypatch.setitem(sys.modules, "ppcourse.lab.graders.lesson_99", graders)
    grade("99.1", right)
    grade("99.10", 1)
    grade("99.10", 2)
    capsys.readouterr()
    progress.summary()
    assert lines(capsys) == [
        "1 of 2 exercises solved",
        "✓ 99.1  ★       5 min  double a number",
        "✗ 99.10 ★★★    10 min  order two ranks, tried 2 times",
    ]
