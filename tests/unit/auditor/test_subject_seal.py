"""Seals of kv.subjects: each goes on where the last one ended, and none hides what another said."""

from __future__ import annotations

from auditor.subject_seal import SubjectSeals
from events.model.audit import Segment, SubjectsSealed


def said(size: int, first: int, upto: int) -> SubjectsSealed:
    segment = Segment(
        topic="kv.subjects",
        partition=0,
        first=first,
        next=upto,
        records=0,
        root=bytes([size]) * 32,
    )
    return SubjectsSealed(log="l", main_size=size, segment=segment)


def folded(*seals: tuple[int, int, int]) -> tuple[SubjectSeals, list[bool]]:
    made = SubjectSeals()
    return made, [made.take(said(*one), b"%d" % one[0]) for one in seals]


def runs(made: SubjectSeals, size: int) -> list[tuple[int, int]]:
    return [(one.segment.first, one.segment.next) for one in made.up_to(size)]


def test_seals_go_on_and_show_a_hole_where_records_went_before_they_were_sealed() -> None:
    made, taken = folded((2, 0, 0), (4, 0, 3), (6, 3, 3), (8, 3, 5), (9, 7, 9), (11, 9, 9))
    assert taken == [True] * 6
    assert runs(made, 3) == [(0, 0)]
    assert runs(made, 7) == [(0, 3), (3, 3)]
    assert runs(made, 8) == [(0, 3), (3, 5)]
    assert runs(made, 99) == [(0, 3), (3, 5), (7, 9), (9, 9)]
    assert (made.reach, made.main_size, runs(made, 1)) == (9, 11, [])


def test_a_seal_of_the_whole_topic_takes_the_place_of_those_before() -> None:
    made, taken = folded((2, 0, 3), (4, 0, 5), (5, 5, 6))
    assert (taken, runs(made, 5)) == ([True] * 3, [(0, 5), (5, 6)])


def test_of_two_for_one_size_the_first_counts_and_none_takes_anything_back() -> None:
    made, taken = folded((4, 0, 3), (4, 0, 5), (3, 3, 5), (5, 0, 2), (6, 1, 7), (7, 3, 2), (8, 3, 4))
    assert taken == [True, False, False, False, False, False, True]
    assert runs(made, 8) == [(0, 3), (3, 4)]
