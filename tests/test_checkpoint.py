"""A training that ends early and is started again is the training that never ended; cases have their ids."""

import errno
import functools
import os
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader
from toys import by_value, classifier, no_rank_starts, rows_of, tied

import ppcourse as pp
from ppcourse.runtime.checkpoints import checkpoint_folder, checkpoint_lock
from ppcourse.runtime.checkpoints.checkpoint import Part, save, sizes
from ppcourse.runtime.checkpoints.checkpoint_folder import Folder, Story
from ppcourse.runtime.checkpoints.checkpoint_lock import Lock
from ppcourse.runtime.checkpoints.saving import History, saving_of
from ppcourse.runtime.training import Trainer

by_value(__name__)
pytestmark = pytest.mark.thorough

ADAM = functools.partial(torch.optim.AdamW, lr=0.05)
STEPS = 6
TRAININGS: dict[tuple[Any, ...], Any] = {}


class StopError(Exception):
    pass


def noisy() -> nn.Sequential:
    """Eight layers; two draw random numbers, one keeps statistics."""
    layers = list(classifier())
    return nn.Sequential(
        *layers[:2], nn.Dropout(0.3), *layers[2:5], nn.Dropout(0.3), nn.BatchNorm1d(5), layers[5]
    ).double()


def quiet() -> nn.Sequential:
    return nn.Sequential(*classifier(classes=4), nn.Tanh(), classifier(seed=1)[0])


def bare() -> nn.Sequential:
    """Of two ranks, one has no weight."""
    return nn.Sequential(classifier(width=3)[0], nn.Tanh())


def batches(model: Callable[[], nn.Sequential]) -> list[tuple[Tensor, Tensor]]:
    """The last one has fewer rows than microbatches, but for statistics of at least two."""
    made = [rows_of(size, seed=size) for size in (8, 9, 10, 11, 12, 8 if model is noisy else 3)]
    return [(targets.flip(0), targets) for _, targets in made] if model is tied else made


def train(model: Callable[[], nn.Sequential], plan: str, p: int, v: int | None = None, **options: Any) -> Any:
    given = {"loss_fn": F.cross_entropy, "optimizer": ADAM, "steps": STEPS, "progress": False, "clip_norm": 0.3, "m": 4}
    given |= {"batches": batches(model)} | options
    return pp.train(plan, model(), given.pop("batches"), p=p, v=v, **given)


def uninterrupted(*arguments: Any) -> Any:
    if arguments not in TRAININGS:
        TRAININGS[arguments] = train(*arguments)
    return TRAININGS[arguments]


def ending_after(count: int, made: list[Any], error: BaseException) -> Iterator[Any]:
    yield from made[:count]
    raise error


def interrupted(folder: Path, *arguments: Any, after: int = 3, every: int = 2, by: Any = StopError) -> None:
    """A training that ends when it asks for the next batch."""
    coming = ending_after(after, batches(arguments[0]), by())
    with pytest.raises(by):
        train(*arguments, batches=coming, checkpoint_dir=folder, checkpoint_every=every)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_equal(one: Any, other: Any) -> None:
    """To the last bit."""
    assert one.losses == other.losses
    assert one.norms == other.norms
    assert one.state_dict.keys() == other.state_dict.keys()
    for name, value in one.state_dict.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(other.state_dict[name])), name


CUTS = [
    pytest.param((noisy, "1f1b", 2), id="1f1b"),
    pytest.param((noisy, "interleaved", 2, 2), id="R74_interleaved"),
    pytest.param((noisy, "zb-v", 2), id="R74_zb_v"),
    pytest.param((noisy, "gpipe", 1), id="one rank"),
    pytest.param((tied, "1f1b", 2), id="a tied weight"),
    pytest.param((bare, "1f1b", 2), id="a rank without weights"),
    pytest.param((quiet, "dualpipe", 2), id="two copies of a stage"),
]


@pytest.mark.parametrize("arguments", CUTS)
def test_case_R67_what_goes_on_equals_what_never_ended(arguments: Any, tmp_path: Path) -> None:  # noqa: N802
    """Random numbers, statistics, the optimizer's memory and several stages a rank (R74): to the last bit."""
    interrupted(tmp_path, *arguments)
    assert names_in(tmp_path) == ["step-00000002"]
    again = train(*arguments, checkpoint_dir=tmp_path, checkpoint_every=2)
    assert_equal(again, uninterrupted(*arguments))
    assert len(again.step_times) == STEPS
    assert again.messages == uninterrupted(*arguments).messages
    assert names_in(tmp_path) == ["step-00000004", "step-00000006"]


def test_case_R71_what_four_ranks_wrote_two_ranks_and_one_go_on_with(tmp_path: Path) -> None:  # noqa: N802
    expected = uninterrupted(quiet, "gpipe", 1)
    interrupted(tmp_path, quiet, "interleaved", 4, 2, after=2)
    interrupted(tmp_path, quiet, "1f1b", 2, after=4)
    training = train(quiet, "gpipe", 1, checkpoint_dir=tmp_path, checkpoint_every=2)
    assert training.losses == pytest.approx(expected.losses, rel=1e-12)
    assert training.norms == pytest.approx(expected.norms, rel=1e-10)
    for name, value in expected.state_dict.items():
        torch.testing.assert_close(training.state_dict[name], value, rtol=1e-9, atol=1e-12)


def test_a_tied_weight_is_one_wherever_its_copies_are(tmp_path: Path) -> None:
    """One rank has it under one name, two ranks under two; a checkpoint has it once."""
    expected = uninterrupted(tied, "gpipe", 1)
    interrupted(tmp_path, tied, "gpipe", 1, after=2)
    interrupted(tmp_path, tied, "1f1b", 2, after=4)
    for path in tmp_path.iterdir():
        keys = FileSystemReader(path).read_metadata().state_dict_metadata
        assert "weights/0.weight" in keys
        assert not [key for key in keys if "/3.weight" in key], path
    training = train(tied, "gpipe", 1, checkpoint_dir=tmp_path, checkpoint_every=2)
    assert training.losses == pytest.approx(expected.losses, rel=1e-12)
    assert training.norms == pytest.approx(expected.norms, rel=1e-10)
    assert torch.equal(training.state_dict["0.weight"], training.state_dict["3.weight"])


def test_the_optimizers_memory_goes_with_its_weight(tmp_path: Path) -> None:
    """Without it, another step would follow from the same weights: so the tests above would see it lost."""
    interrupted(tmp_path, quiet, "gpipe", 1)
    fresh = train(quiet, "gpipe", 1, steps=2).state_dict
    model = quiet()
    model.load_state_dict(fresh)
    without = train(lambda: model, "gpipe", 1, steps=1, batches=batches(quiet)[2:])
    training = train(quiet, "gpipe", 1, steps=3, checkpoint_dir=tmp_path)
    assert training.losses[2] == without.losses[0]  # one set of weights
    assert not torch.allclose(training.state_dict["0.weight"], without.state_dict["0.weight"], rtol=1e-3)


@pytest.mark.slow  # an interrupt ends the ranks, and new ones take seconds to make an optimizer
def test_an_interrupt_loses_no_more_than_the_steps_between_two_checkpoints(tmp_path: Path) -> None:
    interrupted(tmp_path, noisy, "gpipe", 1, after=5, every=3, by=KeyboardInterrupt)
    assert names_in(tmp_path) == ["step-00000003"]
    taken = []
    given = (taken.append(number) or batch for number, batch in enumerate(batches(noisy)))
    training = train(noisy, "gpipe", 1, batches=given, checkpoint_dir=tmp_path, checkpoint_every=3)
    assert_equal(training, uninterrupted(noisy, "gpipe", 1))
    assert taken == [0, 1, 2, 3, 4, 5]


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    train(noisy, "1f1b", 2, steps=3, checkpoint_dir=tmp_path, checkpoint_every=50)
    assert names_in(tmp_path) == ["step-00000003"]  # at the end, too
    before = (tmp_path / "step-00000003" / "training.json").stat().st_mtime_ns
    same = train(noisy, "1f1b", 2, steps=3, checkpoint_dir=tmp_path)
    assert_equal(same, train(noisy, "1f1b", 2, steps=3))
    assert (same.timeline.spans, same.messages) == ((), 0)
    assert (tmp_path / "step-00000003" / "training.json").stat().st_mtime_ns == before


class Unwritable:
    def __reduce__(self) -> Any:
        raise ValueError("not this one")


class Stubborn(nn.Linear):
    def get_extra_state(self) -> Any:
        return Unwritable()

    def set_extra_state(self, state: Any) -> None:
        raise AssertionError


def test_what_cannot_be_written_is_the_error_of_its_rank_and_not_of_torchs_bookkeeping(tmp_path: Path) -> None:
    model, trainer = nn.ModuleDict({"0": Stubborn(2, 2)}), Trainer(SGD)
    trainer.open(model)
    with pytest.raises(ValueError, match="not this one"):
        save(tmp_path, 0, model, trainer, {})


def test_an_error_before_the_first_checkpoint_says_so(tmp_path: Path) -> None:
    saving = saving_of(tmp_path, 7, [*quiet()], ADAM, seed=0, steps=STEPS)
    with pytest.raises(pp.RankError) as caught, saving.told():
        raise pp.RankError(1, None, "boom", note="Where every rank stood:")
    expected = f"Where every rank stood:\nThere is no checkpoint yet in {tmp_path}: one is written every 7 steps."
    assert caught.value.note == expected


# what is in the folder, without ranks


def written(folder: Folder, step: int, **told: Any) -> Path:
    """A checkpoint of two parts, as ranks and driver leave it."""
    place = folder.place(step)
    place.mkdir(parents=True)
    parts = {"__0_0.distcp": bytes(range(200)), "__1_0.distcp": b"another", ".metadata": b"where what is"}
    for name, content in parts.items():
        (place / name).write_bytes(content)
    files = {name: sizes(place / name) for name in parts}
    return folder.finish(Story(step=step, files=files, losses=[0.1] * step, **told))


def test_the_two_newest_are_kept_and_nothing_hidden(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.place(7).mkdir()  # by a training that was killed
    (tmp_path / "notes.txt").touch()  # anybody's
    for step in (2, 4, 6, 8):
        written(folder, step)
    assert names_in(tmp_path) == ["notes.txt", "step-00000006", "step-00000008"]
    found = Folder(tmp_path).newest()
    assert found is not None
    assert (found.step, found.losses) == (8, [0.1] * 8)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp", ".metadata", "training.json"])
@pytest.mark.parametrize("harm", [truncate, flip, Path.unlink])
def test_a_damaged_checkpoint_is_passed_over_by_name(harm: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    written(folder, 2)
    harm(written(folder, 4) / name)
    later = Folder(tmp_path)
    with pytest.warns(UserWarning, match=rf"The checkpoint {tmp_path}/step-00000004 is passed over: .*{name}") as told:
        found = later.newest()
    assert found is not None
    assert found.step == 2
    assert len(told) == 1
    written(later, 3)
    assert names_in(tmp_path) == ["step-00000002", "step-00000003"]  # a damaged one is not of the two
    written(later, 4)
    assert names_in(tmp_path) == ["step-00000003", "step-00000004"]
    found = Folder(tmp_path).newest()
    assert found is not None
    assert found.step == 4


def test_numbers_are_compared_as_numbers_and_a_changed_story_is_seen(tmp_path: Path) -> None:
    written(Folder(tmp_path), 2)
    story = tmp_path / "step-00000002" / "training.json"
    story.write_text(story.read_text().replace("0.1", "0.2", 1))  # still a story, of another training
    for step in (99_999_999, 100_000_000):
        (tmp_path / f"step-{step}").mkdir()
    with pytest.warns(UserWarning, match="is passed over") as told:
        assert Folder(tmp_path).newest() is None
    said = [str(warning.message) for warning in told]
    assert [re.findall(r"step-0*(\d+) ", sentence) for sentence in said] == [["100000000"], ["99999999"], ["2"]]
    assert said[-1].endswith("its training.json cannot be read (the text was changed).")


def test_what_was_being_removed_when_a_training_was_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    for name in ("step-00000002", ".step-00000002-old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "damaged").touch()
    written(Folder(tmp_path), 2)
    assert names_in(tmp_path) == ["step-00000002"]
    assert isinstance(checkpoint_folder.read(tmp_path / "step-00000002"), Story)


def test_case_R73_what_was_not_finished_is_passed_over_by_name(tmp_path: Path) -> None:  # noqa: N802
    folder = Folder(tmp_path)
    written(folder, 2)
    shutil.copytree(tmp_path / "step-00000002", folder.place(4))  # all but its name
    with pytest.warns(UserWarning, match=r"step-00000004-unfinished is passed over: its training ended") as told:
        found = Folder(tmp_path).newest()
    assert found is not None
    assert found.step == 2
    assert len(told) == 1


def test_a_checkpoint_has_its_name_only_when_all_of_it_is_on_the_disk(tmp_path: Path, monkeypatch: Any) -> None:
    order: list[str] = []
    rename = Path.rename
    monkeypatch.setattr(checkpoint_folder.os, "fsync", lambda descriptor: order.append("fsync"))

    def renamed(path: Path, to: Path) -> Path:
        order.append(f"{path.name} to {to.name}")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", renamed)
    written(Folder(tmp_path), 2)
    assert order == ["fsync", "fsync", ".step-00000002-unfinished to step-00000002", "fsync"]


def test_a_training_goes_on_from_the_newest_that_is_whole(tmp_path: Path) -> None:
    interrupted(tmp_path, noisy, "1f1b", 2, after=5)
    assert names_in(tmp_path) == ["step-00000002", "step-00000004"]
    flip(tmp_path / "step-00000004" / "__1_0.distcp")
    with pytest.warns(UserWarning, match="step-00000004 is passed over: its file __1_0.distcp was changed"):
        training = train(noisy, "1f1b", 2, checkpoint_dir=tmp_path, checkpoint_every=2)
    assert_equal(training, uninterrupted(noisy, "1f1b", 2))


# what is refused, in a sentence


@pytest.fixture(scope="module")
def after_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint of two steps."""
    folder = tmp_path_factory.mktemp("checkpoints")
    interrupted(folder, quiet, "gpipe", 1, after=2)
    return folder


def wider() -> nn.Sequential:
    return nn.Sequential(*classifier(width=6, classes=4), *quiet()[6:])


def longer() -> nn.Sequential:
    return nn.Sequential(*quiet(), nn.Linear(5, 3).double())


SGD = functools.partial(torch.optim.SGD, lr=0.1)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "wider layers": (
        {"model": wider},
        r"another model \(its 0\.weight is float64 \[5, 4\], and here float64 \[6, 4\]\)",
    ),
    "a layer more": ({"model": longer}, r"of another model \(that one had no 8\.weight\); train the model that"),
    "a layer less": ({"model": lambda: quiet()[:7]}, r"of another model \(this one has no 7\.weight\)"),
    "another dtype": (
        {"model": lambda: quiet().float()},
        r"0\.weight is float64 \[5, 4\], and here float32 \[5, 4\]",
    ),
    "another optimizer": (
        {"optimizer": SGD},
        r"was trained with AdamW, not SGD; take the same optimizer, or take another",
    ),
    "another seed": ({"seed": 3}, r"was trained with seed=0, not 3; "),
    "fewer steps": ({"steps": 1}, r"has 2 steps behind it, and steps is 1; "),
    "fewer batches": (
        {"batches": batches(quiet)[:1]},
        r"has 2 steps behind it, but there are only 1 batches; give",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_another_training_in_one_sentence(case: str, after_two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, sentence = REFUSED[case]
    options = {"model": quiet, "plan": "gpipe", "p": 1, "checkpoint_dir": after_two} | wrong
    with no_rank_starts(monkeypatch), pytest.raises(ValueError, match=sentence) as caught:
        train(**options)
    assert str(caught.value).startswith(f"The checkpoint {after_two}/step-00000002 ")
    assert str(caught.value).count("\n") == 0


def makes_sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def test_refuses_another_optimizer_that_only_a_rank_can_know(after_two: Path) -> None:
    with pytest.raises(ValueError, match=r"was trained with AdamW, not SGD; take the same optimizer") as caught:
        train(quiet, "gpipe", 1, optimizer=makes_sgd, checkpoint_dir=after_two)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"checkpoint_dir": 7}, r"checkpoint_dir is 7, but it must be the path of a folder"),
        ({"checkpoint_dir": __file__}, r"test_checkpoint\.py', but it cannot be made: File exists"),
        ({"checkpoint_every": 0}, r"checkpoint_every is 0; it must be a whole number of at least 1"),
    ],
)
def test_refuses_what_is_no_folder(
    options: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with no_rank_starts(monkeypatch), pytest.raises(ValueError, match=sentence):
        train(quiet, "gpipe", 1, **({"checkpoint_dir": tmp_path} | options))


def slows_down(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    made = torch.optim.SGD(parameters, lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(made, 0.9)
    made.register_step_post_hook(lambda *_: scheduler.step())
    return made


def test_refuses_an_optimizer_whose_settings_would_be_lost(tmp_path: Path) -> None:
    model, trainer = nn.Linear(2, 2), Trainer(slows_down)
    trainer.open(model)
    trainer.made.step()
    with pytest.raises(RuntimeError, match="the optimizer changes its lr from step to step, which a checkpoint does"):
        save(tmp_path, 0, model, trainer, {})
    assert names_in(tmp_path) == []


class Exact(torch.optim.SGD):
    """Remembers in float32 what is bfloat16 otherwise."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight]["sum"] = torch.full_like(weight, 1 / 3, dtype=torch.float32)


def test_what_an_optimizer_remembers_keeps_its_dtype() -> None:
    trainers = [Trainer(functools.partial(Exact, lr=0.1)) for _ in range(2)]
    for trainer in trainers:
        trainer.open(nn.Linear(2, 2).bfloat16())
    trainers[0].made.step()
    trainers[1].remember(trainers[0].kept())
    for kept in trainers[1].kept().values():
        assert kept["sum"].dtype == torch.float32
        assert bool((kept["sum"] == 1 / torch.tensor(3.0)).all())


def test_what_is_left_to_train_on_and_where_the_last_checkpoint_is(tmp_path: Path) -> None:
    """As on a rank that torchrun has started and that does not look after the folder."""
    saving = saving_of(tmp_path, 2, [*quiet()], ADAM, seed=0, steps=6)
    saving.owns = False
    (tmp_path / "step-00000002").mkdir()
    saving.go_on_from(Story(step=2))
    assert list(saving.left("abcdefghij")) == [(2, "c"), (3, "d"), (4, "e"), (5, "f")]
    saving.after(History(*[[0.1] * 4] * 3), lambda *_: [])
    assert "step-00000002: training goes on from there" in saving.last()  # rank 0 has not finished the next one yet
    (tmp_path / "step-00000004").mkdir()
    assert "step-00000004: training goes on from there" in saving.last()


# one training at a time


def test_a_second_training_in_one_folder_is_one_sentence_until_the_first_has_left(tmp_path: Path) -> None:
    one, other = Folder(tmp_path), Folder(tmp_path)
    one.make()
    owner = rf"process {os.getpid()} on {re.escape(socket.gethostname())}"
    with pytest.raises(ValueError, match=rf"^checkpoint_dir is .*, but another training writes there, {owner}; let it"):
        other.make()
    assert names_in(tmp_path) == [".lock"]
    one.release()
    assert names_in(tmp_path) == []
    other.make()
    one.release()  # again: it is not the other one's
    with pytest.raises(ValueError, match="another training writes there"):
        one.make()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_the_lock_of_a_training_that_was_killed_is_nobodys(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        Folder(tmp_path).make()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert names_in(tmp_path) == [".lock"]
    folder = Folder(tmp_path)
    folder.make()
    assert (tmp_path / ".lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}"
    folder.release()


def test_a_lock_that_is_removed_between_two_steps_of_another_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the file and locking it, the training that had it ends, and a third one begins."""
    first, third, late = Lock(tmp_path), Lock(tmp_path), Lock(tmp_path)
    assert first.take() == ""
    look = checkpoint_lock._owner

    def slowly(file: Any) -> str:
        monkeypatch.setattr(checkpoint_lock, "_owner", look)
        first.release()
        assert third.take() == ""
        return look(file)

    monkeypatch.setattr(checkpoint_lock, "_owner", slowly)
    assert late.take() == f"process {os.getpid()} on {socket.gethostname()}"


def test_where_nothing_can_be_locked_a_training_goes_on_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(checkpoint_lock.fcntl, "flock", refuses)
    with pytest.warns(UserWarning, match=r"\.lock cannot be locked \(No locks available\): see to it"):
        Folder(tmp_path).make()


@pytest.mark.parametrize("ending", ["wrong", "right", "interrupted"])
def test_a_training_leaves_its_folder_to_the_next_whatever_ends_it(
    ending: str, tmp_path: Path, after_two: Path
) -> None:
    shutil.copytree(after_two, tmp_path, dirs_exist_ok=True)
    taken: list[list[str]] = []

    def noted() -> Iterator[Any]:
        for batch in batches(quiet):
            taken.append(names_in(tmp_path))
            if ending == "interrupted":
                raise KeyboardInterrupt
            yield batch

    options = {"wrong": {"seed": 1}, "right": {"steps": 2}, "interrupted": {}}[ending]
    with suppress(ValueError, KeyboardInterrupt):
        train(quiet, "gpipe", 1, batches=noted(), checkpoint_dir=tmp_path, **options)
    assert names_in(tmp_path) == ["step-00000002"]
    assert all(".lock" in names for names in taken)
    assert bool(taken) == (ending != "wrong")


def test_what_a_training_of_more_ranks_left_unfinished_is_not_of_a_checkpoint(tmp_path: Path) -> None:
    saving = saving_of(tmp_path, 2, [*quiet()], ADAM, seed=0, steps=STEPS)
    assert saving.folder is not None
    place = saving.folder.place(2)
    place.mkdir()
    (place / "__3_0.distcp").touch()

    def ask(order: str, folder: str, first: Any) -> list[Part]:
        (Path(folder)).mkdir()
        (Path(folder) / "__0_0.distcp").touch()
        return [Part("AdamW", {"__0_0.distcp": (0, 0)})]

    saving.after(History([0.1, 0.1], [1.0, 1.0], [1.0, 1.0]), ask)
    assert names_in(tmp_path / "step-00000002") == ["__0_0.distcp", "training.json"]
