from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from kvsim.rules import Contradiction
from kvsim.workload.generate import Documents, Fixed, SharedPrefixes, Templates, Uniform, random_stream
from kvsim.workload.generate.content import choose_different
from kvsim.workload.request import Span
from tests.workload.generate.makers import NUM, check_shares, make_workload


def make_documents(**changes: Any) -> Documents:
    values: dict[str, Any] = {"count": 5, "tokens": Uniform(10, 90), "per_request": Fixed(3), "popularity": 1.0}
    return Documents(**{**values, **changes})


def test_prefixes_on_a_small_seed() -> None:
    chosen = [spans[0].source for spans in islice(SharedPrefixes(4, 7, 1.0).contents(1), 12)]
    uniform = random_stream(1, "prefixes").random(12)
    # Weights 1, 1/2, 1/3, 1/4 of 25/12.
    bounds = np.array([12, 18, 22]) / 25
    assert chosen == [f"sys:{int((u >= bounds).sum())}" for u in uniform]


def test_templates_have_a_length_each_and_a_variable_tail() -> None:
    workload = make_workload(num_requests=300, templates=Templates(3, Uniform(50, 500), popularity=1.0))
    plain = list(make_workload(num_requests=300).requests(1))
    lengths = Uniform(50, 500).sample(random_stream(1, "template lengths"), 3).tolist()
    seen = Counter()
    for request, without in zip(workload.requests(1), plain, strict=True):
        template, own = request.prompt
        seen[template] += 1
        assert own == without.prompt[0]
    assert set(seen) == {Span(f"template:{i}", 0, lengths[i]) for i in range(3)}


def test_templates_have_their_popularity() -> None:
    drawn = islice(Templates(4, Fixed(1), popularity=2.0).contents(1), NUM)
    counts = Counter(spans[0].source for spans in drawn)
    weights = np.arange(1.0, 5) ** -2
    check_shares(np.array([counts[f"template:{i}"] for i in range(4)]), weights / weights.sum())


def test_what_stands_before_a_question_has_an_order() -> None:
    workload = make_workload(
        num_requests=20,
        prefixes=SharedPrefixes(1, 8),
        templates=Templates(1, Fixed(5)),
        documents=make_documents(per_request=Fixed(2)),
    )
    for request in workload.requests(1):
        kinds = [str(span.source).split(":")[0] for span in request.prompt]
        assert kinds == ["sys", "template", "doc", "doc", "user"]


# documents


def test_documents_are_different_and_keep_their_lengths() -> None:
    documents = make_documents(per_request=Uniform(1, 5))
    lengths = documents.tokens.sample(random_stream(1, "document lengths"), 5).tolist()
    numbers = set()
    for spans in islice(documents.contents(1), 500):
        assert len(set(spans)) == len(spans)
        assert all(span == Span(span.source, 0, lengths[int(str(span.source)[4:])]) for span in spans)
        numbers.add(len(spans))
    assert numbers == {1, 2, 3, 4, 5}


def test_different_choices_have_the_shares_of_drawing_without_putting_back() -> None:
    weights = np.array([4.0, 2.0, 1.0])
    rng = random_stream(1, "documents")
    counts = Counter(tuple(choose_different(np.cumsum(weights), rng, 2)) for _ in range(NUM))
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    shares = np.array([weights[a] / 7 * weights[b] / (7 - weights[a]) for a, b in pairs])
    check_shares(np.array([counts[pair] for pair in pairs]), shares)
    assert sum(counts[pair] for pair in pairs) == NUM


@pytest.mark.parametrize("popularity", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("count", [1, 7, 400])
def test_all_can_be_chosen_however_small_their_weights(count: int, popularity: float) -> None:
    cumulated = np.cumsum(np.arange(1, count + 1, dtype=float) ** -popularity)
    for _ in range(20):
        assert sorted(choose_different(cumulated, random_stream(1, "documents"), count)) == list(range(count))


def test_the_order_of_documents_changes_only_the_order() -> None:
    drawn, shuffled, ordered = (
        list(islice(make_documents(order=order).contents(1), 200)) for order in ("drawn", "shuffled", "sorted")
    )
    assert [set(spans) for spans in drawn] == [set(spans) for spans in shuffled] == [set(spans) for spans in ordered]
    assert all(list(spans) == sorted(spans) for spans in ordered)
    assert drawn != shuffled
    first = Counter(spans[0].source for spans in shuffled)
    assert len(first) == 5


def test_changing_one_content_leaves_the_others() -> None:
    workload = make_workload(
        num_requests=300,
        prefixes=SharedPrefixes(5, 8),
        templates=Templates(5, Uniform(1, 9)),
        documents=make_documents(per_request=Fixed(1)),
    )

    def parts(changed: Any) -> list[tuple[Span, ...]]:
        return list(zip(*(request.prompt for request in changed.requests(1)), strict=True))

    before = parts(workload)
    changes: list[tuple[dict[str, Any], set[int]]] = [
        ({"prefixes": SharedPrefixes(9, 8)}, {0}),
        ({"templates": Templates(5, Uniform(1, 9), popularity=2)}, {1}),
        ({"documents": make_documents(per_request=Fixed(1), popularity=0)}, {2}),
        ({"prompt": Fixed(7)}, {3}),
    ]
    for change, touched in changes:
        after = parts(evolve(workload, **change))
        assert {part for part in range(4) if before[part] != after[part]} == touched


def test_more_documents_a_request_than_there_are_is_refused() -> None:
    for make, rule in [
        (lambda: make_documents(per_request=Uniform(1, 6)), "per_request must be at most 5, got up to 6"),
        (
            lambda: make_documents(count=9999, per_request=Fixed(1001)),
            "per_request must be at most 1,000, got up to 1,001",
        ),
    ]:
        with pytest.raises(Contradiction) as caught:
            make()
        assert caught.value.sentences == [rule]


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Templates(0, Fixed(1)), "count must be between 1 and 1,000,000"),
        (lambda: Templates(1, Fixed(1), popularity=11), "popularity must be between 0 and 10"),
        (lambda: make_documents(count=0), "count must be between 1 and 1,000,000"),
    ],
)
def test_values_out_of_bounds_are_refused(make: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        make()
