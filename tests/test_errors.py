import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplu_ray.errors import brief, did_you_mean, reason

KEYS = ["seed", "learning_rate", "hidden"]


@pytest.mark.parametrize(
    ("word", "tail"),
    [
        ("sed", "did you mean 'seed'?"),
        ("learning-rate", "did you mean 'learning_rate'?"),
        ("zzz", "known: hidden, learning_rate, seed"),
        ("", "known: hidden, learning_rate, seed"),
        (3, "known: hidden, learning_rate, seed"),
        (None, "known: hidden, learning_rate, seed"),
    ],
)
def test_names_the_nearest_word_or_all(word: object, tail: str) -> None:
    assert did_you_mean(word, iter(KEYS)) == tail


@pytest.mark.parametrize("value", [1, -0.5, True, None, "text", [1, 2], {"a": [1]}, ()])
def test_short_values_are_shown_as_they_are(value: object) -> None:
    assert brief(value) == repr(value)


def test_long_values_are_cut() -> None:
    assert len(brief("x" * 10_000)) == 100
    assert brief(list(range(100))) == "[0, 1, 2, 3, 4, 5, ...]"
    assert brief([[[[["deep"]]]]]) == "[[[[...]]]]"


def test_values_that_hold_themselves_are_cut() -> None:
    value: list[object] = []
    value.append(value)
    assert brief(value) == "[[[[...]]]]"


def test_a_value_that_would_be_huge_when_spelled_out_is_cut() -> None:
    value: object = "lol"
    for _ in range(100):
        value = [value] * 10
    assert len(brief(value)) < 2_000


@given(st.recursive(st.none() | st.text() | st.floats(), lambda v: st.lists(v) | st.tuples(v)))
def test_every_value_is_shown_on_one_line(value: object) -> None:
    assert len(brief(value).splitlines()) == 1


def test_reasons_leave_the_path_out_and_fit_a_line() -> None:
    assert reason(FileNotFoundError(2, "No such file", "/a/path")) == "No such file"
    assert reason(ValueError("one\n  two")) == "one two"
    assert reason(OSError("no errno")) == "no errno"
