import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.workload.request import Request, Source, Span, make_request, merged, num_tokens


def test_neighbours_that_continue_each_other_become_one_span() -> None:
    assert merged([Span("a", 0, 4), Span("a", 4, 3), Span("a", 7, 1)]) == (Span("a", 0, 8),)


@pytest.mark.parametrize(
    "spans",
    [
        (Span("a", 0, 4), Span("b", 4, 3)),  # another source
        (Span("a", 0, 4), Span("a", 5, 3)),  # a gap
        (Span("a", 0, 4), Span("a", 0, 4)),  # the same again
        (Span("a", 4, 3), Span("a", 0, 4)),  # the wrong way round
        (Span(1, 0, 4), Span("1", 4, 4)),  # names that only look alike
    ],
)
def test_neighbours_that_do_not_continue_each_other_stay_apart(spans: tuple[Span, ...]) -> None:
    assert merged(spans) == spans


def test_empty_spans_are_dropped_and_do_not_keep_their_neighbours_apart() -> None:
    assert merged([Span("a", 0, 4), Span("b", 9, 0), Span("a", 4, 4)]) == (Span("a", 0, 8),)
    assert merged([Span("a", 0, 0)]) == ()
    assert merged([]) == ()


spans = st.lists(st.builds(Span, st.sampled_from(["a", 1]), st.integers(0, 4), st.integers(0, 4)), max_size=6)


@given(spans)
def test_merging_keeps_the_tokens_and_is_done_once(content: list[Span]) -> None:
    def tokens(spans: list[Span] | tuple[Span, ...]) -> list[tuple[Source, int]]:
        return [(source, start + i) for source, start, length in spans for i in range(length)]

    once = merged(content)
    assert tokens(once) == tokens(content)
    assert merged(once) == once
    assert num_tokens(once) == len(tokens(content))


def test_a_request_counts_its_tokens() -> None:
    request = Request(7, 5, (Span("sys", 0, 64), Span("user:7", 0, 36)), (Span("out:7", 0, 12),), 3, 99)
    assert (request.prompt_tokens, request.output_tokens) == (100, 12)
    assert (request.id, request.arrival_ns, request.priority, request.abort_ns) == (7, 5, 3, 99)


def test_a_made_request_generates_tokens_of_its_own() -> None:
    request = make_request(7, 5, (Span("a", 0, 3),), 12)
    assert request.output == (Span("out:7", 0, 12),)
    assert (request.priority, request.abort_ns) == (0, None)


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "rule"), [(0, 1, "one prompt token"), (1, 0, "generates at least one token")]
)
def test_a_request_asks_for_something(prompt_tokens: int, output_tokens: int, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        make_request(0, 0, merged([Span("a", 0, prompt_tokens)]), output_tokens)
