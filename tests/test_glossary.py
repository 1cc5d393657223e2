"""The glossary has every word of the course in three languages, and the notation page every place they come from."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
WORDS = (
    *("p", "m", "v", "rank", "stage", "chunk", "microbatch", "F", "B", "I", "W", "`2F0`"),
    *("bubble_overhead", "bubble_rate", "makespan", "longest_stage_time"),
)
PLACES = (
    *("GPipe", "PipeDream", "Megatron-LM", "torch.distributed.pipelining", "DeepSpeed"),
    *("Zero Bubble", "DualPipe", "torchgpipe"),
)


def rows(page: str) -> list[list[str]]:
    """The cells of every row of every table, without headings."""
    text = (DOCS / page).read_text(encoding="utf-8")
    tables = re.findall(r"(?m)(?:^\|.*\n)+", text)
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


TERMS = [row for row in rows("glossary.md") if len(row) == 4]


def test_the_glossary_has_every_word_of_the_course() -> None:
    assert set(WORDS) <= {term for term, *_ in TERMS}


def test_there_are_many_and_none_twice() -> None:
    assert len(TERMS) >= 50
    names = [term for term, *_ in TERMS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("row", TERMS, ids=lambda row: row[0])
def test_every_term_is_there_in_three_languages(row: list[str]) -> None:
    _, chinese, russian, meaning = row
    assert re.search("[一-鿿]", chinese)
    assert re.search("[а-яё]", russian)
    assert meaning


@pytest.mark.parametrize("place", PLACES)
def test_the_notation_page_has_every_place(place: str) -> None:
    text = (DOCS / "notation.md").read_text(encoding="utf-8")
    assert sum(row[0].startswith(place) for row in rows("notation.md")) >= 2
    assert re.search(rf"(?m)^\*\*{re.escape(place)}\*\*", text)


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in ("glossary.md", "notation.md"):
        for target in re.findall(r"\]\(([^)]+)\)", (DOCS / page).read_text(encoding="utf-8")):
            assert (DOCS / target).exists()
