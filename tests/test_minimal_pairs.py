"""The pairs: as many as the paper's, in one place different, and not won by length alone."""

import math
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplu_ray.minimal_pairs import CATEGORIES, MinimalPair, accuracy, minimal_pairs

PAIRS = minimal_pairs()
MISTAKES = [
    ("agreement", "The dogs were in the garden.", "The dogs was in the garden."),
    ("number", "Mia gave one toy to her friend.", "Mia gave one toys to her friend."),
    ("case", "Anna saw us in the garden.", "Anna saw we in the garden."),
    ("gender", "Tom hugged his mom and went to bed.", "Tom hugged her mom and went to bed."),
    ("article", "Ben found an egg in the kitchen.", "Ben found a egg in the kitchen."),
    ("tense", "Yesterday, we went to the park.", "Yesterday, we go to the park."),
    ("word_order", "Sam saw a big red ball.", "Sam saw a red big ball."),
    ("negation", "Tom had never seen a kite before.", "Tom had ever seen a kite before."),
]


def words(sentence: str) -> list[str]:
    return re.findall("[a-z]+", sentence.lower())


def test_two_hundred_of_eight_kinds() -> None:
    assert Counter(pair.category for pair in PAIRS) == dict.fromkeys(CATEGORIES, 25)
    assert len(CATEGORIES) == 8
    assert minimal_pairs() == PAIRS


@pytest.mark.parametrize("expected", MISTAKES)
def test_each_kind_makes_its_mistake(expected: tuple[str, str, str]) -> None:
    assert MinimalPair(*expected) in PAIRS


def test_no_sentence_comes_twice_or_is_both_right_and_wrong() -> None:
    sentences = [sentence for pair in PAIRS for sentence in (pair.good, pair.bad)]
    assert len(set(sentences)) == 400


def test_sentences_are_plain_english() -> None:
    for pair in PAIRS:
        for sentence in (pair.good, pair.bad):
            assert re.fullmatch(r"""[A-Z"][A-Za-z,."? ]+[.?"]""", sentence), sentence
            assert "  " not in sentence
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", pair.good)


def test_pairs_differ_in_one_word_or_in_the_order_of_two() -> None:
    for pair in PAIRS:
        good, bad = words(pair.good), words(pair.bad)
        places = [place for place in range(len(good)) if good[place] != bad[place]]
        if pair.category == "word_order":
            assert len(places) == 2
            assert places[1] == places[0] + 1
            assert sorted(good) == sorted(bad)
        else:
            assert len(places) == 1
        assert re.sub("[A-Za-z]+", "", pair.good) == re.sub("[A-Za-z]+", "", pair.bad)


def test_the_shorter_sentence_is_right_about_as_often_as_the_longer() -> None:
    for category in CATEGORIES:
        longer = [len(p.good) - len(p.bad) for p in PAIRS if p.category == category]
        assert max(map(abs, longer)) <= 2
        assert abs(np.mean(longer)) <= 0.5, category
        assert abs(np.mean(np.sign(longer))) <= 0.2, category


@pytest.mark.parametrize("category", sorted(set(CATEGORIES) - {"word_order"}))
def test_most_forms_are_right_here_and_wrong_there(category: str) -> None:
    forms = [
        (a, b)
        for pair in PAIRS
        if pair.category == category
        for a, b in zip(words(pair.good), words(pair.bad), strict=True)
        if a != b
    ]
    assert len(forms) == 25
    assert sum((bad, good) in forms for good, bad in forms) >= 15


def test_sentences_and_a_newline_before_fit_the_context_of_64() -> None:
    assert max(len(sentence) for pair in PAIRS for sentence in (pair.good, pair.bad)) < 64


def test_accuracy_counts_ties_half() -> None:
    good = np.array([-10.0, -20.0, -30.0, -np.inf])
    bad = np.array([-11.0, -19.0, -30.0, -5.0])
    assert accuracy(good, bad) == 1.5 / 4


@given(st.lists(st.tuples(st.floats(-99, 0), st.floats(-99, 0)), min_size=1))
def test_swapped_sentences_swap_right_and_wrong(scores: list[tuple[float, float]]) -> None:
    good, bad = np.array(scores).T
    assert accuracy(good, bad) + accuracy(bad, good) == pytest.approx(1)


@pytest.mark.parametrize("pairs", [([math.nan], [-1.0]), ([-1.0, -2.0], [-2.0, math.nan])])
def test_who_finds_a_sentence_likely_by_no_number_has_no_accuracy(
    pairs: tuple[list[float], list[float]],
) -> None:
    assert math.isnan(accuracy(np.array(pairs[0]), np.array(pairs[1])))
