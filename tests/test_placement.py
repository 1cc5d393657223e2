"""Which rank holds a stage."""

from hypothesis import given
from strategies import quick, ranks

from ppcourse.schedules.placement import bidirectional, loop, table, vee


def test_with_one_stage_a_rank_stage_s_lives_on_rank_s() -> None:
    assert loop(4).ranks == (0, 1, 2, 3)


def test_a_loop_goes_once_round_the_ranks_for_each_chunk() -> None:
    placement = loop(3, 2)
    assert [placement.stages_of(rank) for rank in range(3)] == [(0, 3), (1, 4), (2, 5)]
    assert placement.num_stages == 6


@quick
@given(ranks, ranks)
def test_every_stage_lives_on_the_one_rank_that_lists_it(p: int, v: int) -> None:
    placement = loop(p, v)
    listed = [stage for rank in range(p) for stage in placement.stages_of(rank)]
    assert sorted(listed) == list(range(p * v))
    assert all(stage in placement.stages_of(placement.rank_of(stage, 0)) for stage in listed)


def test_a_vee_goes_down_the_ranks_and_up_again() -> None:
    placement = vee(3)
    assert placement.ranks == (0, 1, 2, 2, 1, 0)
    assert [placement.stages_of(rank) for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]


def test_fed_from_both_ends_a_stage_lives_on_two_ranks_by_microbatch() -> None:
    placement = bidirectional(4, 6)
    assert [placement.stages_of(rank) for rank in range(4)] == [(0, 3), (1, 2), (1, 2), (0, 3)]
    for i in range(6):
        assert [placement.rank_of(stage, i) for stage in range(4)] == ([0, 1, 2, 3] if i < 3 else [3, 2, 1, 0])


def test_a_table_places_stages_anywhere() -> None:
    bent = table([0, 1, 1, 0], num_ranks=2)
    assert [bent.stages_of(rank) for rank in range(2)] == [(0, 3), (1, 2)]
    assert [bent.rank_of(stage, microbatch=5) for stage in range(4)] == [0, 1, 1, 0]
