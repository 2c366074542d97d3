"""The arithmetic corpus: right answers, whole lines, the same everywhere."""

import hashlib
import math
import re
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from triplu_ray.arithmetic import (
    OPERATORS,
    ArithmeticItem,
    arithmetic_prompts,
    generate_arithmetic,
    problems,
)

TEXT = generate_arithmetic(300_000, seed=1)
PROBLEM = re.compile(r"(\d+) ([+*]) (\d+) =( \d+\n)")


def solved(line: str) -> tuple[int, str, int]:
    """First operand, operator and second operand of a line whose answer is right."""
    match = PROBLEM.fullmatch(line)
    assert match, line
    first, operator, second = int(match[1]), match[2], int(match[3])
    assert match[4] == f" {first + second if operator == '+' else first * second}\n"
    assert line == f"{first} {operator} {second} ={match[4]}"  # no leading zeros
    return first, operator, second


def test_text_is_pinned() -> None:
    digest = hashlib.sha256(generate_arithmetic(10_000, seed=1).encode()).hexdigest()
    assert digest == "b5ec9d5f79861652c9818eb5fef2270f599d2a4caefdbca52e3a3300051bffe6"


def test_every_line_is_right_and_operands_cover_their_ranges_evenly() -> None:
    found = [solved(line) for line in TEXT.splitlines(keepends=True)]
    operators = Counter(operator for _, operator, _ in found)
    assert set(operators) == set(OPERATORS)
    # Half of all problems, within four standard deviations of a fair coin.
    assert abs(operators["+"] - operators["*"]) < 4 * math.sqrt(len(found))
    for operator in OPERATORS:
        for place in (0, 2):
            operands = [int(problem[place]) for problem in found if problem[1] == operator]
            assert set(operands) == set(range(100))
            spread = math.sqrt((100**2 - 1) / 12 / len(operands))
            assert abs(sum(operands) / len(operands) - 99 / 2) < 4 * spread


@given(st.integers(0, 20_000))
def test_fills_the_bytes_with_whole_lines(num_bytes: int) -> None:
    text = generate_arithmetic(num_bytes, seed=1)
    longest_line = 15
    assert num_bytes - longest_line < len(text.encode()) <= num_bytes
    assert text == "" or text.endswith("\n")
    assert TEXT.startswith(text)


def test_seeds_draw_other_problems() -> None:
    other = generate_arithmetic(10_000, seed=2).splitlines()
    equal = sum(a == b for a, b in zip(TEXT.splitlines(), other, strict=False))
    assert len(other) > 500
    assert equal < 20


def test_entropy_rate_is_the_documented_one() -> None:
    items = [item for operator in OPERATORS for item in problems(operator)]
    nats = math.log(len(items))
    characters = sum(len(item.prompt + item.answer) for item in items) / len(items)
    assert (round(nats, 2), round(characters, 1)) == (9.90, 13.8)
    assert round(nats / characters, 3) == 0.716


def test_examples_of_the_paper_are_problems() -> None:
    assert ArithmeticItem("+", "23 + 58 =", " 81\n") in problems("+")
    assert ArithmeticItem("*", "7 * 8 =", " 56\n") in problems("*")


def test_prompts_are_half_additions_and_half_multiplications() -> None:
    prompts = arithmetic_prompts()
    assert Counter(item.operator for item in prompts) == {"+": 100, "*": 100}
    for item in prompts:
        assert solved(item.prompt + item.answer)[1] == item.operator
    assert len(set(prompts)) > 190


def test_prompts_depend_on_the_seed_alone() -> None:
    assert arithmetic_prompts(20) == arithmetic_prompts()[:20]
    assert arithmetic_prompts(seed=4) != arithmetic_prompts()
    digest = hashlib.sha256(repr([tuple(item) for item in arithmetic_prompts()]).encode())
    assert digest.hexdigest() == "a6715f4237904289e1d5e4f38f1a640d02c52d663a88267788e09e38f92f26e4"
