"""Cards to click or to type through: a widget, and the same card as text and picture where no widget can run.

Only standard controls, each with a label, in the order in which Tab reaches them; Enter checks an answer.
"""

import base64
import io
import textwrap
from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ppcourse.lab.drills import scores
from ppcourse.lab.drills.card import Card
from ppcourse.lab.drills.deck import card, draw, kinds

ANY = "any"
LINE = 100  # characters a line of the picture
PRINT = 150  # dots an inch


class Deck(ipywidgets.VBox):  # type: ignore[misc] # ipywidgets has no types
    """A stack of cards; `card` is the one on top."""

    def __init__(self, seed: int = 0, kind: str = ANY) -> None:
        self.card = _drawn(kind, seed)
        self._judged = ""  # the answer that was judged last: Enter and then leaving the field is one try
        wide = {"style": {"description_width": "5em"}}
        self.choice = ipywidgets.Dropdown(options=[ANY, *kinds()], value=kind, description="Kind", **wide)
        self.number = ipywidgets.BoundedIntText(value=seed, min=0, max=10**9, description="Card no.", **wide)
        self.field = ipywidgets.Text(
            description="Answer", placeholder="a number, then Enter", continuous_update=False, **wide
        )
        self.text, self.verdict = ipywidgets.HTML(), ipywidgets.HTML()
        self.check = _button("Check", "Judge the answer", self._check)
        self.solution = _button("Solution", "Show how it is computed", self._solve)
        self.following = _button("Next card", "Draw the next card of this kind", self._next)
        self.choice.observe(self._redraw, names="value")
        self.number.observe(self._redraw, names="value")
        self.field.observe(self._check, names="value")
        buttons = ipywidgets.HBox([self.check, self.solution, self.following])
        super().__init__([self.choice, self.number, self.text, self.field, buttons, self.verdict])
        self._show()

    def _next(self, _: Any) -> None:
        self.number.value += 1

    def _redraw(self, _: Any) -> None:
        self.card = _drawn(self.choice.value, self.number.value)
        self._judged = self.field.value = ""
        self._show()

    def _show(self) -> None:
        self.text.value = f"<p style='max-width:50em'>{escape(repr(self.card)).replace(chr(10), '<br>')}</p>"
        self._say("")

    def _check(self, _: Any) -> None:
        given = self.field.value.strip()
        if given and given != self._judged:
            self._judged = given
            judged = self.card.judge(given)
            scores.keep_card(self.card, judged)
            self._say(f"{scores.mark(judged)} {judged.sentence}")

    def _solve(self, _: Any) -> None:
        self._say(f"{self.card.shown}. {self.card.worked} ({self.card.source})")

    def _say(self, sentence: str) -> None:
        # read aloud by a screen reader when it changes
        self.verdict.value = f"<p role='status' aria-live='polite'>{escape(sentence)}</p>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """For a page without a kernel, and for a terminal: the card on top, as picture and as text."""
        bundle: dict[str, Any] = dict(super()._repr_mimebundle_(**kwargs) or {})
        return {**bundle, "text/plain": repr(self.card), "image/png": picture(self.card)}


def picture(card: Card) -> str:
    """The card drawn as a PNG, in base64 as notebooks keep it."""
    head, _, text = repr(card).partition("\n")
    lines = textwrap.wrap(text, LINE)
    figure = Figure(figsize=(9, 0.7 + 0.22 * len(lines)), facecolor="#F7F7F7")
    FigureCanvasAgg(figure)
    height = figure.get_figheight()
    figure.text(0.02, 1 - 0.12 / height, head, va="top", fontsize=9, weight="bold")
    figure.text(0.02, 1 - 0.42 / height, "\n".join(lines), va="top", fontsize=9, linespacing=1.4)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=PRINT)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _drawn(kind: str, seed: int) -> Card:
    return draw(seed) if kind == ANY else card(kind, seed)


def _button(name: str, what: str, does: Callable[[Any], None]) -> Any:
    button = ipywidgets.Button(description=name, tooltip=what)
    button.on_click(does)
    return button
