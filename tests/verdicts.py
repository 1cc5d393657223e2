"""What a grader says of a wrong answer."""

import ppcourse as pp


def told(number: str, answer: object) -> str:
    """The first line of the verdict, without its mark and number, of an answer that must be wrong."""
    verdict = pp.grade(number, answer)
    assert verdict.state == "wrong"
    return verdict.message.partition("\n")[0]
