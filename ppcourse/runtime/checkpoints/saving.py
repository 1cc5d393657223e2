"""A training that can be gone on with: where it begins, when it saves, and what it says of that.

The ranks are asked through a function `ask(order, *arguments)`, which gives every rank the order and returns their
answers: a notebook's pool and torchrun's ranks each have their own.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from ppcourse.runtime.checkpoints.checkpoint import Part
from ppcourse.runtime.checkpoints.checkpoint_folder import Folder, Story, name_of
from ppcourse.runtime.errors import RankError
from ppcourse.runtime.prepare import aliases_of, check_count


class History(NamedTuple):
    """One of each a step: loss, norm of the gradients, seconds."""

    losses: list[float]
    norms: list[float]
    times: list[float]


Ask = Callable[..., list[Any]]


@dataclass
class Saving:
    """What a training of `steps` steps does about checkpoints; nothing, without a folder.

    every   steps between two
    first   {name of a weight: the first of its names}
    about   what a checkpoint will say, but for what becomes of the training
    begun   what the checkpoint says from which this training goes on
    owns    whether this process looks after the folder; of torchrun's ranks, one does
    """

    steps: int
    folder: Folder | None = None
    every: int = 1
    first: dict[str, str] = field(default_factory=dict)
    about: Story = field(default_factory=Story)
    begun: Story = field(default_factory=Story)
    owns: bool = True
    _done: int = 0  # steps behind the last checkpoint

    def begin(self) -> None:
        """Make the folder, or look in it for the newest whole checkpoint; the folder is this training's until `close`.

        Raises ValueError if it cannot be had, or if this training cannot go on from that checkpoint.
        """
        if self.folder is None:
            return
        self.folder.make()
        if newest := self.folder.newest():
            if wrong := self._wrong(newest):
                raise ValueError(f"{self._checkpoint(newest)} {wrong}, or take another checkpoint_dir.")
            self.go_on_from(newest)

    def close(self) -> None:
        """Leave the folder to others."""
        if self.folder:
            self.folder.release()

    def go_on_from(self, story: Story) -> None:
        self.begun, self._done = story, story.step
        if self.folder and story.step:
            self.folder.whole = [self.folder.path / name_of(story.step)]

    def _wrong(self, found: Story) -> str:
        about = self.about
        if different := _different(found.weights, about.weights):
            return f"is of another model ({different}); train the model that it was written for"
        if None not in (found.optimizer, about.optimizer) and found.optimizer != about.optimizer:
            return f"was trained with {found.optimizer}, not {about.optimizer}; take the same optimizer"
        if found.seed != about.seed:
            return f"was trained with seed={found.seed}, not {about.seed}; take the same seed"
        if found.step > self.steps:
            return f"has {found.step} steps behind it, and steps is {self.steps}; ask for at least as many"
        return ""

    def history(self) -> History:
        """Of the steps that are done, to be gone on with."""
        return History([*self.begun.losses], [*self.begun.norms], [*self.begun.step_times])

    def left(self, batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """The batches that are still to be trained on, with their numbers.

        Raises ValueError if there are fewer than the checkpoint has seen.
        """
        numbered, done = iter(enumerate(batches)), self.begun.step
        seen = sum(1 for _ in itertools.islice(numbered, done))
        if seen < done:
            raise ValueError(
                f"{self._checkpoint(self.begun)} has {done} steps behind it, but there are only {seen} batches; give"
                " them all, from the first on: those that are done are skipped."
            )
        return itertools.islice(numbered, self.steps - done)

    def restore(self, ask: Ask) -> None:
        """Let the ranks go on from where the checkpoint ends. Raises ValueError if their optimizer is another."""
        if not (self.folder and self.begun.step):
            return
        found = self.begun.optimizer
        others = ask("restore", str(self.folder.path / name_of(self.begun.step)), self.first, self.begun.step, found)
        if other := next(filter(None, others), None):
            raise ValueError(
                f"{self._checkpoint(self.begun)} was trained with {found}, not {other}; take the same optimizer, or"
                " take another checkpoint_dir."
            )

    def after(self, history: History, ask: Ask, end: bool = False) -> None:
        """Write a checkpoint if the steps in `history` are a multiple of `every`, or the last ones."""
        done = len(history.losses)
        if self.folder is None or done == self._done or not (end or done % self.every == 0):
            return
        try:
            if self.owns:
                self.folder.discard(done)  # or what a training of more ranks left there would be of this checkpoint
            parts: list[Part] = ask("save", str(self.folder.place(done)), self.first)
            if self.owns:
                self.folder.finish(self._story(done, history, parts))
            else:
                self.folder.whole.append(self.folder.path / name_of(done))  # or soon there
        except BaseException as error:
            if self.owns:
                self.folder.discard(done)
            if isinstance(error, OSError):  # of the disk, not of a rank, which tells itself
                error.add_note(self.last())
            raise
        self._done = done

    def _story(self, done: int, history: History, parts: Sequence[Part]) -> Story:
        return replace(
            self.about,
            step=done,
            optimizer=next((part.optimizer for part in parts if part.optimizer), None),
            losses=history.losses,
            norms=history.norms,
            step_times=history.times,
            files={name: told for part in parts for name, told in part.files.items()},
        )

    def last(self) -> str:
        """Where the last checkpoint is."""
        if self.folder is None:
            return ""
        path = next((path for path in reversed(self.folder.whole) if path.exists()), None)
        if path is None:
            return f"There is no checkpoint yet in {self.folder.path}: one is written every {self.every} steps."
        return f"The last checkpoint is {path}: training goes on from there if it is started again as it was."

    def _checkpoint(self, story: Story) -> str:
        return f"The checkpoint {self.folder.path / name_of(story.step)}" if self.folder else ""

    @contextmanager
    def told(self) -> Iterator[None]:
        """A RankError from within also says where the last checkpoint is."""
        try:
            yield
        except RankError as error:
            error.note = f"{error.note}\n{self.last()}".strip()
            raise


def saving_of(
    checkpoint_dir: str | Path | None,
    checkpoint_every: int,
    layers: Sequence[nn.Module],
    optimizer: Callable[..., Any],
    seed: int,
    steps: int,
) -> Saving:
    """Before it has looked into the folder. Raises ValueError for what is no path, or no number of steps."""
    every = check_count(checkpoint_every, "checkpoint_every")
    if checkpoint_dir is None:
        return Saving(steps)
    if not isinstance(checkpoint_dir, str | Path) or not str(checkpoint_dir):
        raise ValueError(f"checkpoint_dir is {checkpoint_dir!r}, but it must be the path of a folder.")
    first = {name: names[0] for names in aliases_of(layers).values() for name in names}
    about = Story(seed=seed, optimizer=_class_of(optimizer), weights=_weights(layers, first))
    return Saving(steps, Folder(Path(checkpoint_dir).absolute()), every, first, about)


def _weights(layers: Sequence[nn.Module], first: Mapping[str, str]) -> dict[str, str]:
    """{name: dtype and shape} of the model's weights and buffers."""
    state = nn.Sequential(*layers).state_dict().items()
    kinds = {first.get(name, name): value for name, value in state if isinstance(value, Tensor)}
    return {name: f"{str(x.dtype).removeprefix('torch.')} {[*x.shape]}" for name, x in kinds.items()}


def _different(was: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The first weight that two models do not have alike, in words; "" if there is none."""
    for name in [*was, *now]:
        if name not in now:
            return f"this one has no {name}"
        if name not in was:
            return f"that one had no {name}"
        if was[name] != now[name]:
            return f"its {name} is {was[name]}, and here {now[name]}"
    return ""


def _class_of(optimizer: Any) -> str | None:
    """Of what `optimizer` makes, or None if only a rank can know it."""
    while isinstance(optimizer, functools.partial):
        optimizer = optimizer.func
    return optimizer.__name__ if isinstance(optimizer, type) else None
