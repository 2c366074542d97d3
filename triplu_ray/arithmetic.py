r"""arithmetic_lite: lines such as `23 + 58 = 81` and `7 * 8 = 56`.

The TriPLU paper (sections 4 and 5.9, table 12) leaves the ranges open. Here both operands of both
operations are drawn evenly from 0 to 99, each operation for half of the lines:

- It is the plainest choice, and multiplication is hard, as in table 12 (0.04 to 0.09 exact). Of
  operands up to 12 a model of that size knows all products by heart before its loss is lowest.
- Only the problem is a surprise, its answer follows. A line holds ln 2 + 2 ln 100 = 9.90 nats in
  13.8 characters, so no model gets below 0.716 nats a character.
- A window that opens anywhere often lacks the problem of its first answer: the least loss over
  windows of 32 is then 0.88, and 0.76 over those that open a line. Table 12 has 0.85 to 0.89, so
  its windows or ranges are other ones; its losses compare in order, not in level.

Rates of table 12 are multiples of 1/600, and of 1/300 for multiplication: over three seeds, 200
prompts of which half are multiplications, the default here.
"""

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Literal, NamedTuple, TypeVar

_Choice = TypeVar("_Choice")

Operator = Literal["+", "*"]

OPERATORS: tuple[Operator, Operator] = ("+", "*")
LARGEST_OPERAND = 99


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
    lines = [item.prompt + item.answer for operator in OPERATORS for item in problems(operator)]
    drawn: list[str] = []
    size = 0
    while True:
        line = _draw(random, lines)
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
    choices = [problems(operator) for operator in OPERATORS]
    return tuple(_draw(random, choices[index % len(choices)]) for index in range(count))


@cache
def problems(operator: Operator) -> tuple[ArithmeticItem, ...]:
    """All of one operation, by first and then second operand."""
    operands = range(LARGEST_OPERAND + 1)
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
