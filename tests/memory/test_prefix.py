from hypothesis import given
from hypothesis import strategies as st

from kvsim.memory.prefix import Piece, PrefixTree, block_keys
from kvsim.workload.request import Source, Span, merged

NO_LIMIT = 10**6


def make_tree(*contents: list[Span]) -> PrefixTree:
    """A tree that has seen these contents, in this order."""
    tree = PrefixTree()
    for content in contents:
        tree.intern(content)
    return tree


def keys_of(tree: PrefixTree, content: list[Span], block_size: int) -> list[int]:
    return block_keys(tree.intern(content), block_size, NO_LIMIT)


SYSTEM = Span("sys", 0, 64)


def user(name: int, length: int) -> Span:
    return Span(f"user:{name}", 0, length)


def test_the_first_content_owns_the_first_node() -> None:
    assert make_tree().intern([SYSTEM, user(1, 32)]) == [Piece(0, 96)]


def test_a_content_that_leaves_another_owns_a_node_from_there() -> None:
    tree = make_tree([SYSTEM, user(1, 32)])
    assert tree.intern([SYSTEM, user(2, 40)]) == [Piece(0, 64), Piece(1, 104)]


def test_contents_that_leave_at_the_same_token_share_a_node() -> None:
    tree = make_tree([SYSTEM, user(1, 32)], [SYSTEM, user(2, 40)])
    assert tree.intern([SYSTEM, user(2, 8)]) == [Piece(0, 64), Piece(1, 72)]


def test_contents_that_leave_with_different_tokens_do_not() -> None:
    tree = make_tree([SYSTEM, user(1, 32)], [SYSTEM, user(2, 40)])
    assert tree.intern([SYSTEM, user(3, 8)]) == [Piece(0, 64), Piece(2, 72)]


def test_a_content_that_goes_on_where_another_ended_extends_its_node() -> None:
    tree = make_tree([SYSTEM])
    assert tree.intern([SYSTEM, user(1, 32)]) == [Piece(0, 96)]
    assert tree.intern([SYSTEM, user(2, 32)]) == [Piece(0, 64), Piece(1, 96)]


def test_a_content_may_leave_in_the_middle_of_a_span() -> None:
    tree = make_tree([SYSTEM])
    assert tree.intern([Span("sys", 0, 10), user(1, 5)]) == [Piece(0, 10), Piece(1, 15)]


def test_a_prefix_of_a_content_is_part_of_its_node() -> None:
    tree = make_tree([SYSTEM])
    assert tree.intern([Span("sys", 0, 10)]) == [Piece(0, 10)]


def test_different_first_tokens_have_nothing_in_common() -> None:
    tree = make_tree([Span("a", 0, 8)])
    assert tree.intern([Span("b", 0, 8)]) == [Piece(1, 8)]
    assert tree.intern([Span("a", 1, 8)]) == [Piece(2, 8)]


def test_contents_that_leave_different_nodes_at_one_depth_with_one_token_do_not_share_a_node() -> None:
    """Equal blocks behind different ones have different keys."""
    after_a, after_b = [Span("a", 0, 4), user(1, 4)], [Span("b", 0, 4), user(1, 4)]
    tree = make_tree([Span("a", 0, 8)], [Span("b", 0, 8)], after_a)
    assert tree.intern(after_b) == [Piece(1, 4), Piece(3, 8)]
    assert keys_of(tree, after_a, 4)[1] != keys_of(tree, after_b, 4)[1]


def test_an_empty_content_has_no_pieces() -> None:
    assert make_tree([SYSTEM]).intern([]) == []


def test_sources_that_look_alike_are_different() -> None:
    tree = make_tree([Span(1, 0, 8)])
    assert tree.intern([Span("1", 0, 8)]) == [Piece(1, 8)]


def test_only_full_blocks_have_a_key() -> None:
    tree = make_tree()
    assert len(keys_of(tree, [user(1, 31)], 16)) == 1
    assert len(keys_of(tree, [user(1, 32)], 16)) == 2
    assert keys_of(tree, [user(1, 15)], 16) == []


def test_no_more_keys_than_asked_for() -> None:
    pieces = [Piece(0, 64), Piece(1, 128)]
    assert block_keys(pieces, 16, 6) == block_keys(pieces, 16, NO_LIMIT)[:6]
    assert block_keys(pieces, 16, 2) == block_keys(pieces, 16, NO_LIMIT)[:2]
    assert block_keys(pieces, 16, 0) == []


def test_a_block_belongs_to_the_node_of_its_last_token() -> None:
    """Blocks of 16 over 24 shared tokens: the second one has 8 tokens of each side."""
    shared = Span("sys", 0, 24)
    tree = make_tree()
    one, other = keys_of(tree, [shared, user(1, 40)], 16), keys_of(tree, [shared, user(2, 40)], 16)
    assert one[0] == other[0]
    assert not set(one[1:]) & set(other[1:])


def test_equal_text_behind_different_heads_has_different_keys() -> None:
    tree = make_tree()
    one = keys_of(tree, [user(1, 16), SYSTEM], 16)
    other = keys_of(tree, [user(2, 16), SYSTEM], 16)
    assert not set(one) & set(other)


def test_keys_of_a_content_do_not_change_when_others_come() -> None:
    tree = make_tree()
    content = [SYSTEM, user(1, 64)]
    before = keys_of(tree, content, 16)
    for name in range(2, 5):
        tree.intern([SYSTEM, user(name, 64)])
        tree.intern([*content, user(name, 64)])
    assert keys_of(tree, content, 16) == before


# contents as explicit tokens

sources = st.sampled_from(["a", "b", 3])
spans = st.builds(Span, sources, st.integers(0, 3), st.integers(1, 5))
contents = st.lists(spans, min_size=1, max_size=5)


def tokens_of(content: list[Span]) -> list[tuple[Source, int]]:
    return [(source, start + i) for source, start, length in content for i in range(length)]


@given(st.lists(contents, min_size=2, max_size=6), st.integers(1, 4))
def test_keys_are_equal_exactly_where_all_tokens_so_far_are(many: list[list[Span]], block_size: int) -> None:
    tree = PrefixTree()
    # Twice: what came later must not have changed the keys of what came before.
    named = [(keys_of(tree, content, block_size), tokens_of(content)) for content in many + many]
    for keys, tokens in named:
        assert len(keys) == len(tokens) // block_size
        for other_keys, other_tokens in named:
            for i, key in enumerate(keys):
                for j, other_key in enumerate(other_keys):
                    same = tokens[: (i + 1) * block_size] == other_tokens[: (j + 1) * block_size]
                    assert (key == other_key) == same


@given(contents, st.lists(contents, max_size=4), st.integers(1, 4), st.data())
def test_spans_split_elsewhere_give_equal_keys(
    content: list[Span], others: list[list[Span]], block_size: int, data: st.DataObject
) -> None:
    tree = make_tree(*others)
    split: list[Span] = []
    for source, start, length in content:
        at = data.draw(st.integers(1, length))
        split.append(Span(source, start, at))
        if at < length:
            split.append(Span(source, start + at, length - at))
    assert tokens_of(split) == tokens_of(content)
    expected = keys_of(tree, content, block_size)
    assert keys_of(tree, split, block_size) == expected
    assert keys_of(tree, list(merged(content)), block_size) == expected
