"""`ppcourse train`: what cannot work is one sentence and an exit status, on ranks of its own and under torchrun."""

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
from toys import no_rank_starts

from ppcourse.cli import main
from ppcourse.runtime import torchrun
from ppcourse.runtime.processes import alike
from ppcourse.runtime.processes.alike import check_alike

command = importlib.import_module("ppcourse.cli.train")  # whose name in its package is the function's
NUMBER = "it must be a whole number of at least 1"
REFUSED = {
    "no ranks": (["-p", "0"], "p, the number of ranks, is 0"),
    "no width": (["--width", "0"], f"--width is 0; {NUMBER}"),
    "a width below 0": (["--width", "-4"], f"--width is -4; {NUMBER}"),
    "no block": (["--layers", "0"], f"--layers is 0; {NUMBER}"),
    "no tokens": (["--context", "-3"], f"--context is -3; {NUMBER}"),
    "no rows": (["--batch", "-2"], f"--batch is -2; {NUMBER}"),
    "no steps": (["--steps", "0"], f"--steps is 0; {NUMBER}"),
    "no rate": (["--lr", "nan"], "--lr is nan; it is a finite number"),
    "a rate without end": (["--lr", "inf"], "--lr is inf; it is a finite number"),
    "a seed below 0": (["--seed", "-1"], "--seed is -1; it is a whole number from 0"),
    "a seed too long": (["--seed", str(10**30)], "it is a whole number from 0 to 2**63 - 1"),
    "no folder for checkpoints": (["--checkpoint-dir", ""], "checkpoint_dir is ''"),
    "no folder for numbers": (["--json", "/nowhere/steps.json"], "--json is /nowhere/steps.json, but that is no file"),
    "a folder for numbers": (["--json", "."], "--json is ., but that is no file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_one_sentence_before_a_rank_starts(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    options, sentence = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    with no_rank_starts(monkeypatch):
        assert main(["train", *options]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert not list(tmp_path.iterdir())


def test_a_model_that_memory_has_no_room_for_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def full(**_: int) -> None:
        raise RuntimeError("you tried to allocate 25600000000 bytes")

    monkeypatch.setattr(command, "gpt", full)
    assert main(["train"]) == 2
    said = "A GPT of this width, context and layers cannot be made: you tried to allocate 25600000000 bytes\n"
    assert capsys.readouterr().err == said


def under_torchrun(monkeypatch: pytest.MonkeyPatch, rank: int, local_rank: int) -> list[int]:
    """This process as one of four ranks on two hosts; what it would end with."""
    given = {"RANK": rank, "WORLD_SIZE": 4, "MASTER_ADDR": "127.0.0.1", "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": 2}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    return ended


@pytest.mark.parametrize(("rank", "local_rank", "says"), [(0, 0, 1), (1, 1, 0), (2, 0, 1), (3, 1, 0)])
def test_what_is_wrong_is_said_once_on_each_host(
    rank: int, local_rank: int, says: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The command of one host may be wrong alone."""
    ended = under_torchrun(monkeypatch, rank, local_rank)
    main(["train", "--steps", "0"])
    assert ended == [2]
    assert capsys.readouterr().err.count("--steps is 0") == says


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [(KeyboardInterrupt(), 130, ""), (ConnectionError("Rank 1 has not come in 120 s."), 1, "Rank 1 has not come")],
)
def test_a_rank_of_torchruns_ends_at_once(
    error: BaseException, status: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Its threads may wait for a rank that is gone."""
    ended = under_torchrun(monkeypatch, 0, 0)

    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(command, "train_here", fails)
    main(["train"])
    assert ended == [status]
    assert capsys.readouterr().err.startswith(says)


def test_hosts_with_different_commands_are_told_before_they_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(torchrun, "join", lambda: None)
    monkeypatch.setattr(torchrun, "check_alike", lambda given: told.append(dict(given)) or 1 // 0)
    under_torchrun(monkeypatch, 0, 0)
    for options in (["-m", "4"], ["-m", "8", "--json", "steps.json", "--link", "gloo"]):
        with pytest.raises(ZeroDivisionError):
            main(["train", "--checkpoint-dir", "a", *options])
    monkeypatch.setattr(alike, "gathered", lambda own: [("a", told[0]), own])
    with pytest.raises(ValueError, match=r"^-m is 4 for rank 0, but 8 for rank 1 on \S+; give every host the same com"):
        check_alike(told[1])
    for name in ("-m", "--link"):
        told[1][name] = told[0][name]
    check_alike(told[1])  # files may have other paths, and the links are one
    monkeypatch.setattr(alike, "gathered", lambda own: [("a", {"the link": "nccl"}), own])
    with pytest.raises(
        ValueError, match=r"^the link is nccl for rank 0, but staged for rank 1 on \S+; .* with --link if"
    ):
        check_alike({"the link": "staged"})
    assert told[0]["the link"] == "gloo"


def test_schedules_says_what_is_wrong_with_its_numbers(capsys: Any) -> None:
    for options, sentence in ((["-p", "0"], "number of ranks, is 0"), (["--comm", "nan"], "Costs.comm is nan")):
        assert main(["schedules", *options]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("words", [["gpu-check", "--dry"], ["demo"]])
def test_a_place_that_cannot_be_written_is_one_sentence_at_once(words: list[str], tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "inside", tmp_path if words[0] == "gpu-check" else tmp_path / "file"):
        assert main([*words, "--out", str(place)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"--out is {place}, but ")
        assert said.err.count("\n") == 1
