"""Minimal pairs: does a model find the right sentence likelier than one with a mistake?

TriPLU's check by "200 template items" (section 4, table 2), whose templates are not published;
these are our own. Every pair is two sentences in the words of TinyStories that differ in one place.
In each category most forms that are right in one frame are wrong in another, or both sentences have
the same words, so that a taste for the shorter sentence or the commoner word gains little.

    agreement   of verb and subject, also with another noun between them
    number      of the noun after a numeral or a determiner
    case        of pronouns
    gender      of pronouns that stand for a named child
    article     a or an
    tense       past and base form of verbs
    word_order  of adjectives, and of verbs with what belongs to them
    negation    never and ever, nobody and anybody
"""

import math
import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class MinimalPair(NamedTuple):
    """Two sentences that differ in one place; `good` is the right one."""

    category: str
    good: str
    bad: str


# Frames and the rows that fill the slots of each; `[right|wrong]` is where the sentences differ.
CATEGORIES: dict[str, tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    "agreement": (
        (
            "The {1} [were|was] in the garden.",
            "The {0} near the trees [was|were] very hungry.",
            "Every day, the {1} [play|plays] by the river.",
            "The little {0} [likes|like] to swim.",
            "The {1} near the big tree [were|was] cold.",
        ),
        (
            ("dog", "dogs"),
            ("girl", "girls"),
            ("duck", "ducks"),
            ("boy", "boys"),
            ("bear", "bears"),
        ),
    ),
    "number": (
        (
            "Tom had two big [{1}|{0}] in his bag.",
            "Mia gave one [{0}|{1}] to her friend.",
            "There were many [{1}|{0}] on the table.",
            "Ben wanted this [{0}|{1}] for his birthday.",
            "Lily saw three new [{1}|{0}] on the floor.",
        ),
        (
            ("ball", "balls"),
            ("cookie", "cookies"),
            ("book", "books"),
            ("toy", "toys"),
            ("flower", "flowers"),
        ),
    ),
    "case": (
        (
            "{0} gave the ball to [him|he].",
            "[They|Them] went to the park with {0}.",
            "{0} wanted to play with [them|they].",
            "Mom told {0} a story, and [he|him] smiled.",
            "{0} saw [us|we] in the garden.",
        ),
        (("Lily",), ("Tom",), ("Anna",), ("Ben",), ("Sue",)),
    ),
    "gender": (
        (
            "{0} loved to play with [her|his] toys.",
            "{1} was sad because [he|she] lost a ball.",
            "{0} was happy when [she|he] saw the cake.",
            "{1} hugged [his|her] mom and went to bed.",
            "{1} fell off the bike and hurt [himself|herself].",
        ),
        (("Lily", "Tom"), ("Mia", "Ben"), ("Anna", "Tim"), ("Sue", "Max"), ("Sara", "Jack")),
    ),
    "article": (
        (
            "Ben found [an|a] {0} in the kitchen.",
            "Lily saw [a|an] {1} near the house.",
            "Mia had [an|a] old {1} at home.",
            "It was [a|an] big {0}, and Tom liked it.",
            "Once there was [a|an] {1} who loved to run.",
        ),
        (
            ("apple", "dog"),
            ("orange", "cat"),
            ("egg", "bird"),
            ("onion", "rabbit"),
            ("umbrella", "horse"),
        ),
    ),
    "tense": (
        (
            "Yesterday, we [{1}|{0}] {2}.",
            "Tom wanted to [{0}|{1}] {2}.",
            '"Did you [{0}|{1}] {2}?" asked Mom.',
            "When the sun came up, they [{1}|{0}] {2}.",
            "Tomorrow, we will [{0}|{1}] {2}.",
        ),
        (
            ("go", "went", "to the park"),
            ("eat", "ate", "a big cake"),
            ("see", "saw", "a white cat"),
            ("play", "played", "with the dog"),
            ("make", "made", "a nice house"),
        ),
    ),
    "word_order": (
        (
            "Sam saw a [{0} {1}|{1} {0}] {2}.",
            "The [{1} {2}|{2} {1}] was on the grass.",
            "They [did not|not did] see the {1} {2}.",
            '"Where [is the|the is] {0} {2}?" asked Lily.',
            "Tim [ran to|to ran] the {0} {2}.",
        ),
        (
            ("big", "red", "ball"),
            ("little", "blue", "car"),
            ("small", "yellow", "bird"),
            ("long", "green", "snake"),
            ("fat", "brown", "bear"),
        ),
    ),
    "negation": (
        (
            "Tom had [never|ever] seen a {0} before.",
            "Nobody had [ever|never] seen such a big {0}.",
            "Sara could not find the {0} [anywhere|nowhere].",
            "The {0} was gone, and [nobody|anybody] knew why.",
            "Mia did not tell [anybody|nobody] about the {0}.",
        ),
        (("frog",), ("kite",), ("cake",), ("fish",), ("boat",)),
    ),
}

_DIFFERENCE = re.compile(r"\[(.*)\|(.*)\]")


def minimal_pairs() -> tuple[MinimalPair, ...]:
    """All 200, 25 of each category: every frame with every row."""
    return tuple(
        MinimalPair(
            category,
            *(_DIFFERENCE.sub(rf"\{side}", frame).format(*row) for side in (1, 2)),
        )
        for category, (frames, rows) in CATEGORIES.items()
        for frame in frames
        for row in rows
    )


def accuracy(good: NDArray[np.float64], bad: NDArray[np.float64]) -> float:
    """Share of pairs whose right sentence is the likelier one; a tie counts half.

    `good` and `bad` `[pairs]` are log-likelihoods of whole sentences, summed over their tokens and
    not divided by their lengths, which differ by two characters at most. NaN if any is: such a
    model likes nothing.
    """
    assert good.shape == bad.shape
    if np.isnan([good, bad]).any():
        return math.nan
    return float(np.mean((good > bad) + 0.5 * (good == bad)))
