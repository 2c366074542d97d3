"""The story generator: the same on every machine, and true to the facts it states."""

import hashlib
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplu_ray.lite import (
    CHILD,
    ELDERS,
    END_OF_STORY,
    FOODS,
    MIXTURES,
    NAMES,
    NUMBERS,
    PRONOUNS,
    generate_stories,
)

TEXT = generate_stories(300_000, seed=1)
STORIES = TEXT.split(f"\n{END_OF_STORY}\n")[:-1]

# Every word that tells the gender of a character.
GENDERED = {gender: {*NAMES[gender], CHILD[gender], *ELDERS[gender]} for gender in ("she", "he")}


def words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z]+", text)


def test_text_is_pinned() -> None:
    digest = hashlib.sha256(generate_stories(10_000, seed=1).encode()).hexdigest()
    assert digest == "ebdb7decc79c444d584959be2c4c6ee8ad2244517ecf0684ba187943bd3b09be"


def test_opens_and_separates_stories_like_the_tinystories_files() -> None:
    assert TEXT.isascii()
    assert "\n\n" not in TEXT
    assert "  " not in TEXT
    assert not re.search(r" $|^ ", TEXT, re.M)
    assert TEXT.count(END_OF_STORY) == TEXT.count(f"\n{END_OF_STORY}\n") == len(STORIES)


def test_no_template_syntax_is_left() -> None:
    assert set("[]{}/_|").isdisjoint(TEXT.replace(END_OF_STORY, ""))


@given(st.integers(0, 20_000))
def test_fills_the_bytes_and_cuts_after_a_line(num_bytes: int) -> None:
    text = generate_stories(num_bytes, seed=1)
    longest_line = 800
    assert num_bytes - longest_line < len(text.encode()) <= num_bytes
    assert text == "" or text.endswith("\n")
    assert TEXT.startswith(text)


def test_no_story_comes_twice() -> None:
    assert len(STORIES) > 300
    assert len(set(STORIES)) == len(STORIES)


def test_seeds_share_no_story() -> None:
    other = generate_stories(100_000, seed=2).split(f"\n{END_OF_STORY}\n")
    assert set(STORIES).isdisjoint(other[:-1])


def test_vocabulary_is_a_few_hundred_words_often_met() -> None:
    counts = Counter(word.lower() for word in words(TEXT))
    assert 500 < len(counts) < 900
    assert sum(counts.values()) / len(counts) > 50


@pytest.mark.parametrize("gender", ["she", "he"])
def test_pronouns_have_someone_to_stand_for(gender: str) -> None:
    told = [set(words(story)) for story in STORIES]
    absent = [story for story in told if story.isdisjoint(GENDERED[gender])]
    assert len(absent) > 20
    pronouns = {form for word in PRONOUNS[gender] for form in (word, word.capitalize())}
    assert all(story.isdisjoint(pronouns) for story in absent)


def test_hero_keeps_one_gender() -> None:
    for story in STORIES:
        # Up to the friend, the opening speaks of the hero alone.
        hero_alone = re.split("best friend|often played|Next door", story)[0]
        names = [word for word in words(hero_alone) if word in {*NAMES["she"], *NAMES["he"]}]
        assert len(set(names)) == 1
        own, other = ("she", "he") if names[0] in NAMES["she"] else ("he", "she")
        told = set(words(hero_alone.lower()))
        assert told & set(PRONOUNS[own])
        assert told.isdisjoint({*PRONOUNS[other], CHILD[other]})


def test_sums_and_plurals_are_right() -> None:
    sums = re.findall(r"(\w+) (\w+) and (\w+) (\w+) make (\w+) (\w+)", TEXT)
    assert len(sums) > 20
    singulars, plurals = ({food[column] for food in FOODS} for column in (0, 1))
    for first, first_food, second, second_food, total, foods in sums:
        a, b, c = (NUMBERS.index(number.lower()) for number in (first, second, total))
        assert a + b == c
        for number, food in ((a, first_food), (b, second_food), (c, foods)):
            assert (food in singulars) == (number == 1)
            assert (food in plurals) == (number != 1)


def test_change_is_what_is_left() -> None:
    bought = re.findall(
        r"had (\w+) coins? and wanted.*? cost (\w+) coins?\..*? had (\w+) coins? left", TEXT
    )
    assert len(bought) > 10
    for coins, price, change in bought:
        assert NUMBERS.index(coins) == NUMBERS.index(price) + NUMBERS.index(change)


def test_paints_mix_as_the_table_says() -> None:
    mixed = re.findall(r"(\w+) and (\w+) make (\w+)!", TEXT)
    assert len(mixed) > 10
    assert {(first.lower(), second, third) for first, second, third in mixed} <= set(MIXTURES)


def test_a_lost_toy_is_described_as_it_was_introduced() -> None:
    lost = re.compile(r'"I lost my (\w+)," said \w+\. "It is (\w+) and has ([\w ]+)\."')
    described = [(story, found) for story in STORIES if (found := lost.search(story))]
    assert len(described) > 10
    for story, found in described:
        toy, color, marks = found.groups()
        assert f"{color} {toy} with {marks}" in story.partition("\n")[0]


def test_articles_suit_the_next_letter() -> None:
    assert not re.search(r"\b[Aa] [aeiou]", TEXT)
    assert not re.search(r"\b[Aa]n [^aeiouh]", TEXT)
    assert " an apple" in TEXT


def test_names_are_told_apart_by_gender() -> None:
    assert not set(NAMES["she"]) & set(NAMES["he"])
    assert all(name.istitle() for name in (*NAMES["she"], *NAMES["he"]))
