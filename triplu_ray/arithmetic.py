r"""arithmetic_lite: lines such as `23 + 58 = 81` and `7 * 8 = 56` (TriPLU table 12).

The paper leaves the ranges open. Here both operands of both operations are drawn evenly from 0 to
99, which is the plainest choice and agrees with table 12 (best losses 0.85 to 0.89 nats a
character, a tenth to a quarter of all answers right, a twentieth to a tenth of the products):

- Only the problem is a surprise, the answer follows from it. A line holds ln 2 + 2 ln 100 = 9.90
  nats in 13.7 characters, so no model gets below 0.723 nats a character. In windows of 32
  that open anywhere a first answer often lacks its problem; that puts the least loss at 0.79.
- Tables of 0 to 12 would have 169 products, which such a model soon knows by heart; of these
  10,000 it learns the leading and the last digits.

Rates of table 12 are multiples of 1/600 over all problems and of 1/300 over products: over three
seeds, 200 prompts of which half are products. So are these by default.
"""

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Literal, NamedTuple, TypeVar

_Choice = TypeVar("_Choice")

Operator = Literal["+", "*"]

LARGEST_OPERAND: dict[Operator, int] = {"+": 99, "*": 99}


class ArithmeticItem(NamedTuple):
    r"""`prompt` as in `23 + 58 =`, and the `answer` that must follow, as in ` 81\n`."""

    operator: Operator
    prompt: str
    answer: str


def generate_arithmetic(num_bytes: int, seed: int) -> str:
    """Draw problems with their answers until `num_bytes` are full; whole lines only.

    ASCII, so bytes are characters. A shorter text is a prefix of a longer one of the same seed.
    Equal arguments give equal text on every platform: all that is drawn is `Random.random`, whose
    sequence Python guarantees.
    """
    random = Random(seed)
    lines = {
        operator: [item.prompt + item.answer for item in problems(operator)]
        for operator in LARGEST_OPERAND
    }
    drawn: list[str] = []
    size = 0
    while True:
        line = _draw(random, lines[_draw(random, tuple(lines))])
        size += len(line)
        if size > num_bytes:
            return "".join(drawn)
        drawn.append(line)


def arithmetic_prompts(count: int = 200, seed: int = 3) -> tuple[ArithmeticItem, ...]:
    """Problems to be solved by greedy decoding: additions and multiplications in turn.

    They are drawn like the lines of the corpus, with a seed of their own, and not kept out of it:
    how many of them a training text holds is left to chance, as the paper says nothing else. So an
    exact match may be a memory; the rate is a diagnostic, as in the paper. A prompt opens a line:
    without a newline before it, `7 * 8 =` might be the end of `37 * 8 =`.
    """
    random = Random(seed)
    choices = [problems(operator) for operator in LARGEST_OPERAND]
    return tuple(_draw(random, choices[index % len(choices)]) for index in range(count))


@cache
def problems(operator: Operator) -> tuple[ArithmeticItem, ...]:
    """All of one operation, by first and then second operand."""
    operands = range(LARGEST_OPERAND[operator] + 1)
    return tuple(
        ArithmeticItem(
            operator,
            prompt=f"{first} {operator} {second} =",
            answer=f" {first + second if operator == '+' else first * second}\n",
        )
        for first in operands
        for second in operands
    )


def _draw(random: Random, choices: Sequence[_Choice]) -> _Choice:
    return choices[int(random.random() * len(choices))]
