"""What all widgets here share: labelled controls, pictures that follow them, and errors as sentences.

    controls ──(a value changes)──► draw() ──► pictures         a slider, a box to tick, a button: all by keyboard
                                       └─(raises)─► problem      one sentence where the picture would be

A widget needs a kernel. Where there is none (a page on the web, an exported notebook) a picture of its state
stands in its place.
"""

import base64
import io
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import ipywidgets
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ppcourse.lab.gantt import Gantt
from ppcourse.runtime.errors import RankError

EXPECTED = (ValueError, RankError)  # their messages are whole sentences
SCREEN, PRINT = 100, 150  # pixels an inch: on the page, in the file
WIDE = ipywidgets.Layout(width="340px")
LABEL = {"description_width": "120px"}


class Drawn(NamedTuple):
    """Pictures and tables, as HTML, and what is wrong, in a sentence; one, the other, or both."""

    pictures: str
    problem: str = ""


class Panel(ipywidgets.VBox):  # type: ignore[misc]
    """Controls above pictures. Who inherits sets `controls` and writes `draw` and `figure`.

    controls   by name: what stands above the pictures
    quiet      names of controls whose changes change no picture
    problem    what is wrong, in a sentence; "" if nothing is
    shown      the pictures and tables, as HTML
    """

    quiet: frozenset[str] = frozenset()

    def __init__(self, controls: Mapping[str, Any], lines: Mapping[str, Any] | None = None) -> None:
        """`lines` are controls too, each on a line of its own below the others."""
        below = tuple((lines or {}).values())
        self.controls = {**controls, **(lines or {})}
        self.problem, self.drawing = "", False
        self.line, self.shown = ipywidgets.HTML(), ipywidgets.HTML()
        grid = ipywidgets.Layout(flex_flow="row wrap", align_items="center")
        super().__init__((ipywidgets.Box(tuple(controls.values()), layout=grid), *below, self.line, self.shown))
        for name, control in self.controls.items():
            if "value" in control.trait_names() and name not in self.quiet:
                control.observe(self._on_change, names="value")
        self.redraw()

    def __getattr__(self, name: str) -> Any:
        """A control by its name, as in `explore().schedule.value = "zb-h1"`."""
        controls = self.__dict__.get("controls", {})
        if name in controls:
            return controls[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}; its controls are {', '.join(controls)}.")

    def draw(self) -> Drawn:
        """The pictures and tables for the controls as they are. A ValueError becomes the problem shown."""
        raise NotImplementedError

    def figure(self) -> Figure:
        """The same as a picture, for where no widget can run."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Show what the controls say now. Never raises: what goes wrong is told in `problem`."""
        self.drawing = True
        try:
            pictures, problem = self.draw()
        except Exception as error:  # in a callback nobody would see it
            pictures, problem = "", sentence(error)
        finally:
            self.drawing = False
        self.tell(problem)
        self.shown.value = pictures

    def on_press(self, button: str, work: Callable[[], None]) -> None:
        """Do `work` when the button is pressed; show in a sentence what it raises."""

        def pressed(_: Any) -> None:
            try:
                work()
            except (Exception, KeyboardInterrupt) as error:  # in a callback nobody would see it
                self.tell(sentence(error))

        self.controls[button].on_click(pressed)

    def tell(self, problem: str) -> None:
        """Show a sentence above the picture, or none."""
        self.problem = problem
        self.line.value = alert(problem) if problem else ""

    def _on_change(self, _: Any) -> None:
        if not self.drawing:  # drawing may set a control itself
            self.redraw()

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The widget for who has a kernel, else a picture of it, else the same in words."""
        data = dict(super()._repr_mimebundle_(**options) or {})
        picture = self._still()
        data["text/plain"] = repr(picture) if isinstance(picture, Gantt) else self.in_short()
        buffer = io.BytesIO()
        picture.savefig(buffer, format="png", dpi=PRINT)
        data["image/png"] = base64.b64encode(buffer.getvalue()).decode()
        width, height = (int(inches * SCREEN) for inches in picture.get_size_inches())
        return data, {"image/png": {"width": width, "height": height, "alt": data["text/plain"].partition("\n")[0]}}

    def in_short(self) -> str:
        """What a picture that is no Gantt chart shows, in a line."""
        return self.problem or type(self).__name__

    def _still(self) -> Figure:
        try:
            return self.figure()
        except Exception as error:  # a cell must not fail because its picture does
            return in_words(sentence(error))


def sentence(error: BaseException) -> str:
    """What to tell of an error: its own sentence, and its kind where it may say little alone."""
    said = str(error).partition("\n")[0].rstrip(".")
    kind = type(error).__name__
    if not said:
        return f"{kind}."
    return f"{said}." if isinstance(error, EXPECTED) else f"{kind}: {said}."


def alert(problem: str) -> str:
    """A sentence that a screen reader reads out when it appears; with a mark, not by colour alone."""
    return f'<div role="alert" style="border-left:4px solid #D55E00;padding-left:8px">✗ {escape(problem)}</div>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """Cells, which are HTML, as a table whose first column heads its rows."""
    left, right = (f'style="padding:1px 10px;text-align:{side}"' for side in ("left", "right"))
    top = [f'<th scope="col" {right if n else left}>{head}</th>' for n, head in enumerate(heads)]
    lines = ["".join(top)]
    for first, *rest in rows:
        cells = [f'<th scope="row" {left}>{first}</th>', *(f"<td {right}>{text}</td>" for text in rest)]
        lines.append("".join(cells))
    said = f'<caption style="text-align:left">{caption}</caption>' if caption else ""
    return f"<table>{said}{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def whole(label: str, value: int, least: int, most: int, step: int = 1) -> Any:
    """A slider of whole numbers. Raises ValueError for a value that is none, or below the least."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{label} is {value!r}; it must be a whole number of at least {least}.")
    limits = {"min": least, "max": max(most, value), "step": step}
    return ipywidgets.IntSlider(value, description=label, layout=WIDE, style=LABEL, **limits)


def real(label: str, value: float, most: float, step: float = 0.1) -> Any:
    """A slider of numbers from 0 on."""
    limits = {"min": 0.0, "max": max(most, value), "step": step}
    return ipywidgets.FloatSlider(value, description=label, layout=WIDE, style=LABEL, readout_format=".3g", **limits)


def choice(label: str, options: Sequence[Any], value: Any) -> Any:
    """One of several, from a list that drops down. Raises ValueError for a value that is not among them."""
    known = [option[1] if isinstance(option, tuple) else option for option in options]
    if value not in known:
        raise ValueError(f"{label} is {reprlib.repr(value)}; it must be one of {', '.join(map(str, known))}.")
    return ipywidgets.Dropdown(options=options, value=value, description=label, layout=WIDE, style=LABEL)


def tick(label: str, value: bool = False) -> Any:
    """A box to tick."""
    return ipywidgets.Checkbox(value, description=label, indent=False, layout=ipywidgets.Layout(width="auto"))


def button(label: str, tooltip: str) -> Any:
    """A button, which Enter and the space bar press."""
    return ipywidgets.Button(description=label, tooltip=tooltip, layout=ipywidgets.Layout(width="auto"))


def in_words(text: str) -> Figure:
    """A picture of some lines, each letter as wide as any other."""
    lines = text.splitlines() or [""]
    figure = Figure(figsize=(9, 0.3 + 0.17 * len(lines)), dpi=SCREEN)
    FigureCanvasAgg(figure)
    figure.text(0.01, 0.5, text, va="center", fontsize=8, family="DejaVu Sans Mono", wrap=True)
    return figure
