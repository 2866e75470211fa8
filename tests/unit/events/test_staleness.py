"""How old an answer is, on the reader's own clock alone."""

from __future__ import annotations

from events.fold.staleness import REMEMBERED_BEACONS, BeaconBook, staleness_ns


def nonce(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_an_own_beacon_counts_from_when_it_was_begun() -> None:
    book = BeaconBook("me")
    book.began(nonce(1), 100)
    assert book.begun_at(0, nonce(1)) is None
    book.read_back(7, "me", nonce(1))
    assert book.begun_at(7, nonce(1)) == 100


def test_an_echo_of_anybodys_beacon_stands_for_my_newest_older_one() -> None:
    book = BeaconBook("me")
    for number, at in ((1, 100), (3, 300)):
        book.began(nonce(number), at)
    book.read_back(10, "me", nonce(1))
    book.read_back(11, "other", nonce(2))
    book.read_back(12, "me", nonce(3))
    assert book.begun_at(11, nonce(2)) == 100
    assert book.begun_at(12, nonce(3)) == 300


def test_another_nonce_at_the_offset_never_counts() -> None:
    book = BeaconBook("me")
    book.began(nonce(1), 100)
    book.read_back(5, "me", nonce(1))
    assert book.begun_at(5, nonce(2)) is None
    assert book.begun_at(6, nonce(1)) is None


def test_somebody_elses_copy_of_my_nonce_is_not_mine() -> None:
    book = BeaconBook("me")
    book.began(nonce(1), 100)
    book.read_back(5, "thief", nonce(1))
    assert book.begun_at(5, nonce(1)) is None


def test_offsets_that_fall_back_void_everything_remembered() -> None:
    book = BeaconBook("me")
    book.began(nonce(1), 100)
    book.read_back(5, "me", nonce(1))
    book.began(nonce(2), 200)
    book.read_back(3, "me", nonce(2))
    assert book.begun_at(5, nonce(1)) is None
    assert book.begun_at(3, nonce(2)) == 200


def test_memory_is_bounded_and_forgotten_beacons_do_not_count() -> None:
    book = BeaconBook("me")
    for number in range(3 * REMEMBERED_BEACONS):
        book.began(nonce(number), number)
        book.read_back(number, "me", nonce(number))
    assert book.begun_at(0, nonce(0)) is None
    last = 3 * REMEMBERED_BEACONS - 1
    assert book.begun_at(last, nonce(last)) == last


def test_staleness_is_never_less_than_the_age_of_the_view_of_control() -> None:
    assert staleness_ns(1_000, 900, 950) == 100
    assert staleness_ns(1_000, 990, 400) == 600
    assert staleness_ns(1_000, None, 990) is None
    assert staleness_ns(1_000, 990, None) is None
