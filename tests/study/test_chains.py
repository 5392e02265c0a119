"""Which requests go on from which, on small prompts by hand."""

from kvsim.study.chains import Chains
from kvsim.workload.request import Content, Span
from kvsim.workload.traces import Row

SYSTEM = Span("system", 0, 600)


def seen(*rows: tuple[int, Content, int], with_outputs: bool = True) -> Chains:
    chains = Chains(with_outputs=with_outputs)
    prompts = (Row(time, sum(span.length for span in prompt), out, prompt) for time, prompt, out in rows)
    assert len(list(chains.watch(prompts))) == len(rows)
    return chains


def test_turns_go_on_from_prompt_and_output_and_others_have_openings() -> None:
    chains = seen(
        (0, (SYSTEM, Span("a", 0, 900)), 100),
        (5, (SYSTEM, Span("b", 0, 400)), 50),
        (9, (SYSTEM, Span("a", 0, 1_000), Span("a more", 0, 30)), 10),
        (12, (SYSTEM, Span("a", 0, 1_000), Span("a more", 0, 30), Span("a last", 0, 60)), 10),
        (14, (Span("other", 0, 5),), 1),
    )
    assert chains.starts.tolist() == [0, 1, 4]
    assert chains.turns.tolist() == [3, 1, 1]
    assert chains.known.tolist() == [0, 600, 1_500, 1_630, 0]
    assert chains.pauses_ns.tolist() == [9, 3]
    assert chains.added.tolist() == [30, 50]
    openings = chains.openings.tolist()
    assert openings[0] == openings[4] == -1
    assert len(set(openings[:4])) == 4


def test_a_partial_last_block_need_not_come_again() -> None:
    """Of 1,500 tokens the first 1,024 are in full blocks of 512."""
    chains = seen(
        (0, (Span("a", 0, 1_024), Span("rest", 0, 476)), 20), (1, (Span("a", 0, 1_024), Span("b", 0, 700)), 1)
    )
    assert chains.starts.tolist() == [0]
    assert chains.added.tolist() == [204]


def test_a_prompt_that_comes_again_is_no_turn_unless_outputs_are_left_out() -> None:
    rows = ((0, (Span("a", 0, 900),), 100), (1, (Span("a", 0, 900),), 100))
    assert seen(*rows).starts.tolist() == [0, 1]
    assert seen(*rows).openings.tolist() == [-1, 0]
    without = seen(*rows, with_outputs=False)
    assert without.starts.tolist() == [0]
    assert without.added.tolist() == [1]


def test_what_several_share_is_nobody_s_turn() -> None:
    prompts = [(number, (Span("a", 0, 700), Span(f"own {number}", 0, 900)), 1) for number in range(3)]
    assert seen(*prompts).starts.tolist() == [0, 1, 2]


def test_turns_that_add_less_than_nothing_are_made_up_for_by_the_others() -> None:
    chains = seen(
        (0, (Span("a", 0, 2_000),), 200),
        (1, (Span("a", 0, 2_100),), 100),  # 100 tokens of the output were left out
        (2, (Span("a", 0, 2_400),), 1),
        with_outputs=False,
    )
    assert chains.added.tolist() == [1, 99]  # of 200 all but what is missing, and the least one each
