"""Names of allocators: read, written, refused."""

from fractions import Fraction

import pytest

from kvsim.errors import KvsimError
from kvsim.study.allocators import KINDS, AllocatorSpec, parse_allocator, parse_allocators

NAMED = {
    "paged:16": AllocatorSpec("paged", 16),
    "paged:1": AllocatorSpec("paged", 1),
    "max": AllocatorSpec("max"),
    "max:2048": AllocatorSpec("max", 2048),
    "pow2": AllocatorSpec("pow2"),
    "pow2:1000000000": AllocatorSpec("pow2", 10**9),
    "oracle": AllocatorSpec("oracle"),
    "predicted:0": AllocatorSpec("predicted", Fraction(0)),
    "predicted:0.25": AllocatorSpec("predicted", Fraction(1, 4)),
    "predicted:4.999999": AllocatorSpec("predicted", Fraction(4_999_999, 10**6)),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_name_is_read_and_written(name: str) -> None:
    assert parse_allocator(name) == NAMED[name]
    assert NAMED[name].name == name


def test_every_kind_is_named() -> None:
    assert {spec.kind for spec in NAMED.values()} == set(KINDS)


@pytest.mark.parametrize(("text", "name"), [(" paged:016 ", "paged:16"), ("predicted:1.50", "predicted:1.5")])
def test_an_allocator_has_one_name(text: str, name: str) -> None:
    assert parse_allocator(text).name == name


KNOWN = "an allocator must be one of paged:B, max[:LEN], pow2[:LEN], oracle, predicted:ERROR, got "
BLOCK_SIZE = "the block size B of paged:B must be a whole number of tokens from 1 to 1,000,000,000, got "
LONGEST = "the LEN of max[:LEN] must be a whole number of tokens from 1 to 1,000,000,000, got "
ERROR = "the ERROR of predicted:ERROR must be a share from 0 to 5 with at most six decimals, such as 0.25, got "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", KNOWN + "''"),
        ("buddy", KNOWN + "'buddy'"),
        ("Paged:16", KNOWN + "'Paged:16'"),
        ("oracle:2048", "an allocator oracle takes nothing behind its name, got 'oracle:2048'"),
        ("oracle:", "an allocator oracle takes nothing behind its name, got 'oracle:'"),
        ("paged", BLOCK_SIZE + "''"),
        *((f"paged:{size}", f"{BLOCK_SIZE}'{size}'") for size in ("", "0", "-1", "1.5", "16:2", "1e3", "\uff11", "9" * 31)),
        *((f"max:{size}", f"{LONGEST}'{size}'") for size in ("", "0", "1000000001", "2k")),
        ("predicted", ERROR + "''"),
        *((f"predicted:{error}", f"{ERROR}'{error}'") for error in ("", "-0.5", "25%", "0.1234567", "5.1", "10", "1/4", "nan")),
    ],
)  # fmt: skip
def test_what_is_no_allocator_is_refused_with_the_rule(text: str, message: str) -> None:
    with pytest.raises(KvsimError) as refused:
        parse_allocator(text)
    assert str(refused.value) == message


def test_a_list_keeps_its_order_and_holds_nothing_twice() -> None:
    assert [spec.name for spec in parse_allocators("max, paged:16,max:2048")] == ["max", "paged:16", "max:2048"]
    for text, message in (
        ("paged:16,max,paged:016", "allocators must differ, got paged:16 twice"),
        ("max,max,max", "allocators must differ, got max 3 times"),
        ("max,", KNOWN + "''"),
    ):
        with pytest.raises(KvsimError) as refused:
            parse_allocators(text)
        assert str(refused.value) == message


def test_a_kind_that_is_none_cannot_be_described() -> None:
    with pytest.raises(ValueError, match="kind must be one of paged, max, pow2, oracle, predicted, got 'buddy'"):
        AllocatorSpec("buddy")
