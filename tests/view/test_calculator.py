"""The tab without a browser: what is said to it, and what it shows."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bokeh.models import ColumnDataSource

import kvsim.view
from kvsim.model.catalogue import catalogue, load_geometry
from kvsim.model.deployment import Deployment
from kvsim.model.sizing import size
from kvsim.study.colours import COLOURS
from kvsim.view.calculator import MAX_UPLOAD_BYTES, Calculator
from kvsim.view.calculator_chart import ContextChart
from kvsim.view.calculator_fields import Calculations
from kvsim.view.channel import Channel

PLAIN = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096,
}  # fmt: skip
HYBRID = {
    **PLAIN, "model_type": "gemma3_text", "head_dim": 16, "sliding_window": 512, "sliding_window_pattern": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip


class Driven:
    """A calculator, and the page's side of its channel."""

    def __init__(self, **state: str) -> None:
        self.tab = Calculator()
        if state:
            self.tab.restore(state)
        channel = self.tab.roots()["channel"]
        assert isinstance(channel, Channel)
        self.channel = channel
        self.count = 0

    def touch(self, kind: str, name: str, value: str | None = "", file_name: str = "") -> dict[str, Any]:
        self.count += 1
        touch = {"count": self.count, "kind": kind, "name": name, "value": value, "file_name": file_name}
        self.channel.update(said=json.dumps(touch))
        return self.shown

    def upload(self, config: object, name: str = "config.json") -> dict[str, Any]:
        return self.touch("file", "config", base64.b64encode(json.dumps(config).encode()).decode(), name)

    @property
    def shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(str(self.channel.shown))
        return shown


def test_the_experiment_that_everyone_starts_with() -> None:
    page = Driven()
    assert page.shown["texts"]["raw_exact"] == "1,073,741,824 B"
    doubled = page.touch("pressed", "twice_the_context")["texts"]
    assert (doubled["raw"], doubled["raw_was"]) == ("2 GiB", "was 1 GiB: 2 times as much")
    many = page.touch("pressed", "eight_times_the_sequences")["texts"]
    assert (many["raw"], many["raw_was"]) == ("16 GiB", "was 2 GiB: 8 times as much")
    back = page.touch("pressed", "start")["texts"]
    assert back["raw_was"] == "was 16 GiB: 1/16 of it"
    uneven = page.touch("pressed", "one_more_token")["texts"]
    assert uneven["slack_more"] == "15 slots empty in each last block; 0.18% of what is allocated"
    assert (uneven["slack"], uneven["slack_was"]) == ("1.88 MiB", "was 0 B")
    assert uneven["allocated_was"] == "was 1 GiB: 2 MiB more"
    large = page.touch("pressed", "blocks_of_256")["texts"]
    assert large["slack_more"] == "255 slots empty in each last block; 3.02% of what is allocated"
    assert large["raw_was"] == "as before"


def test_all_of_a_drag_or_of_typing_is_one_change() -> None:
    page = Driven()
    for text in ("1", "16", "163", "1638", "16384"):
        typed = page.touch("typed", "num_tokens", text)
    assert typed["texts"]["raw_was"] == "was 1 GiB: 2 times as much"
    done = page.touch("set", "num_tokens", "16384")
    assert done["texts"]["raw_was"] == "was 1 GiB: 2 times as much"
    at = done["sliders"]["num_tokens"]["at"]
    for place in (at + 1, at + 8):
        page.touch("slid", "num_tokens", str(place))
    assert page.touch("let_go", "num_tokens")["texts"]["raw_was"] == "was 2 GiB: 2 times as much"
    assert page.touch("slid", "num_tokens", str(at))["texts"]["raw_was"] == "was 4 GiB: 1/2 of it"


def test_sliders_and_boxes_move_each_other() -> None:
    page = Driven()
    sliders = page.touch("set", "num_tokens", "131,072")["sliders"]
    assert sliders["num_tokens"]["at"] == sliders["num_tokens"]["max"]
    assert page.touch("slid", "block_size", "9")["fields"]["block_size"] == "512"
    assert page.touch("slid", "budget", "0")["fields"]["budget"] == "1 GiB"
    assert page.touch("set", "budget", "30 GB")["sliders"]["budget"]["says"] == "30 GB"
    shorter = page.touch("set", "max_model_len", "4096")
    assert shorter["wrong"]["num_tokens"] == "Context length must not exceed the longest request, got 131,072 for 4,096"
    ends = page.touch("slid", "num_tokens", str(shorter["sliders"]["num_tokens"]["max"]))
    assert (ends["fields"]["num_tokens"], ends["wrong"]) == ("4,096", {})


def test_a_model_that_takes_the_context_down_is_compared_with_what_was_seen_last() -> None:
    page = Driven()
    assert page.touch("set", "num_tokens", "20000")["texts"]["raw"] == "2.44 GiB"
    texts = page.touch("set", "model", "gemma-2-2b")["texts"]
    assert texts["news"].startswith("Context length is 8,192 tokens now, not 20,000")
    assert texts["raw_was"].startswith("was 2.44 GiB: ")


def test_a_model_that_ends_before_the_context_length_takes_it_down_and_says_so() -> None:
    for page in (Driven(), Driven(model="llama-2-7b")):
        shown = page.touch("set", "model", "llama-2-7b") if page.tab.state() == {} else page.shown
        assert (shown["fields"]["num_tokens"], shown["wrong"]) == ("4,096", {})
        assert shown["texts"]["news"] == "Context length is 4,096 tokens now, not 8,192: the model ends there"
        assert page.tab.state() == {"model": "llama-2-7b", "num_tokens": "4096"}
        assert page.touch("pressed", "start")["fields"]["num_tokens"] == "4,096"
        assert "must not exceed" in page.touch("pressed", "one_more_token")["wrong"]["num_tokens"]
    typing = Driven().touch("typed", "model", "llama-2-7b")
    assert typing["fields"]["num_tokens"] == "8,192", "more letters may follow"
    asked = Driven(model="llama-2-7b", num_tokens="5000")
    assert "must not exceed" in asked.shown["wrong"]["num_tokens"], "an address says what it says"


def test_the_last_good_figures_stay_and_are_marked() -> None:
    page = Driven()
    bad = page.touch("set", "block_size", "sixteen")
    assert bad["wrong"] == {"block_size": "'sixteen' is not a valid integer"}
    assert (bad["marks"]["earlier"], bad["texts"]["raw"], page.tab.state()) == (True, "1 GiB", {})
    good = page.touch("set", "block_size", "32")
    assert (good["wrong"], good["marks"]["earlier"], page.tab.state()) == ({}, False, {"block_size": "32"})


def test_state_has_only_what_differs_and_restores_the_same() -> None:
    page = Driven()
    assert page.tab.state() == {}
    for name, value in (("num_tokens", "8,193"), ("model", "gemma-3-27b"), ("tensor_parallel", "2"), ("k_dim", "1")):
        page.touch("set", name, value)
    state = page.tab.state()
    assert state == {"num_tokens": "8193", "model": "gemma-3-27b", "tensor_parallel": "2"}
    again = Driven(**state)
    assert again.tab.state() == state
    assert again.shown["fields"] == page.shown["fields"] | {"k_dim": "128"}
    assert {**again.shown["texts"]} == {**page.shown["texts"], "raw_was": "", "allocated_was": "", "slack_was": ""}


def test_a_bad_address_is_said_in_one_line() -> None:
    page = Driven(colour="red", num_tokens="many", num_sequences="8", budget="2 GiB" + "!" * 10_000)
    assert page.shown["texts"]["note"] == (
        "This address cannot be followed in all: 'colour' is no setting here; 'many' is not a valid integer, and 1 more"
    )
    assert page.shown["fields"]["num_sequences"] == "8"
    assert page.shown["texts"]["raw"] == "1 GiB"
    assert page.touch("pressed", "start")["texts"]["note"] == ""


def test_who_listens_is_told_of_every_change() -> None:
    page, states = Driven(), []
    page.tab.on_state = lambda: states.append(page.tab.state())
    page.touch("set", "num_sequences", "8")
    page.touch("pressed", "start")
    assert states == [{"num_sequences": "8"}, {}]


def test_a_plain_config_is_typed_in_for_the_address() -> None:
    page = Driven()
    page.touch("set", "num_tokens", "100")
    shown = page.upload(PLAIN, "<b>.json")
    assert page.tab.state() == {
        "source": "typed", "num_layers": "2", "num_kv_heads": "2", "k_dim": "16", "v_dim": "16",
        "num_query_heads": "4", "max_model_len": "4096", "num_tokens": "100", "label": "<b>.json",
    }  # fmt: skip
    assert "<b>.json: its layers are all alike" in shown["texts"]["news"]
    assert shown["texts"]["formula"] == "2 layers x 2 KV heads x (16 K + 16 V) x 2 B = 256 B"
    assert shown["texts"]["title"] == "<b>.json, vLLM 0.32.0, 1 rank"
    again = Driven(**page.tab.state()).shown["texts"]
    assert (again["formula"], again["title"]) == (shown["texts"]["formula"], shown["texts"]["title"])
    assert page.touch("set", "num_layers", "3")["texts"]["title"].startswith("given geometry, "), "no more the file's"
    assert page.touch("set", "source", "catalogue")["fields"]["max_model_len"] == "", "it was the file's"


def test_nothing_of_an_uploaded_model_is_left_to_the_next() -> None:
    page = Driven()
    page.upload({**PLAIN, "max_position_embeddings": 2048}, "short.json")
    assert (page.tab.state()["max_model_len"], page.tab.state()["num_tokens"]) == ("2048", "2048")
    longer = page.upload({**HYBRID, "max_position_embeddings": 100_000}, "long.json")
    assert (longer["fields"]["max_model_len"], longer["wrong"]) == ("", {})
    assert page.touch("set", "num_tokens", "100000")["wrong"] == {}
    assert page.tab.state().keys() == {"source", "config", "sha256", "num_tokens"}
    page.touch("set", "max_model_len", "50000")
    page.touch("set", "num_tokens", "40000")
    again = Driven(**page.tab.state())
    again.upload({**HYBRID, "max_position_embeddings": 100_000}, "long.json")
    assert again.tab.state() == page.tab.state(), "what an address says of its own file stays"


def test_a_config_is_awaited_without_an_error() -> None:
    shown = Driven().touch("set", "source", "config")
    assert (shown["wrong"], shown["marks"]["earlier"], shown["marks"]["awaits_file"]) == ({}, True, True)
    assert shown["texts"]["earlier"] == "No config.json is chosen yet: these are the figures of llama-3.1-8b."


def test_every_sort_of_model_may_be_chosen_as_a_file() -> None:
    """Hybrids and models of states alone too: a file is answered as the model that is known by name."""
    known = catalogue()
    sorts = {frozenset(cache.kind for cache in load_geometry(name, Path()).caches()): name for name in known}
    assert frozenset({"recurrent"}) in sorts
    for name in sorts.values():
        entry = known[name]
        shown = Driven(num_tokens="100", source_tokens="10").upload(entry["config"], name)
        assert (shown["wrong"], shown["texts"]["note"]) == ({}, ""), name
        sizing = size(load_geometry(name, Path()), 16 * 2**30, Deployment(source_tokens=10), num_tokens=100)
        of = sizing.engine or sizing.ideal
        assert shown["texts"]["allocated_exact"] == f"{of.allocated_bytes:,} B"
        assert shown["texts"]["title"].startswith(f"{name}, ")


def once(first: Callable[..., None], later: Callable[..., None]) -> Callable[..., None]:
    """What acts as `first` when it is called for the first time."""
    acts = iter([first])
    return lambda *arguments: next(acts, later)(*arguments)


def test_a_fault_is_said_in_the_page_and_the_figures_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Driven()

    def broken(*_: object) -> None:
        raise AssertionError("<b>impossible</b>")

    with monkeypatch.context() as patched:
        patched.setattr(Calculations, "answer", broken)
        shown = page.touch("set", "num_tokens", "16384")
    assert "an error of kvsim itself, AssertionError: '<b>impossible</b>'" in shown["texts"]["note"]
    assert (shown["marks"]["earlier"], shown["texts"]["raw"], page.tab.state()) == (True, "1 GiB", {})
    with monkeypatch.context() as patched:
        patched.setattr(ContextChart, "show", once(broken, ContextChart.show))
        shown = page.touch("set", "num_tokens", "16384")
    assert "an error of kvsim itself" in shown["texts"]["note"]
    assert (shown["marks"]["earlier"], shown["texts"]["raw"], page.tab.state()) == (True, "1 GiB", {})
    well = page.touch("set", "num_tokens", "16384")
    assert (well["marks"]["earlier"], well["texts"]["note"], well["texts"]["raw"]) == (False, "", "2 GiB")


def test_an_address_has_the_name_and_digest_of_other_configs() -> None:
    page = Driven(num_tokens="1000")
    assert page.upload(HYBRID)["texts"]["title"].startswith("config.json, ")
    state = page.tab.state()
    assert state.keys() == {"source", "config", "sha256", "num_tokens"}
    again = Driven(**state)
    assert again.shown["wrong"]["config"].startswith("no config.json is chosen: choose 'config.json' again")
    assert again.shown["marks"]["from_config"]
    other = again.upload({**HYBRID, "head_dim": 32})
    assert "not the file of the address" in other["texts"]["note"]
    same = again.upload(HYBRID)
    assert (same["wrong"], same["texts"]["note"], again.tab.state()) == ({}, "", state)


def test_what_is_no_config_is_refused_beside_its_field() -> None:
    page = Driven()
    too_large = base64.b64encode(b" " * (MAX_UPLOAD_BYTES + 1)).decode()
    for value, rule in (
        (None, "a.json: a config must be at most 1,048,576 bytes, and this file is larger"),
        (too_large, "a.json: a config must be at most 1,048,576 bytes, got 1,048,577"),
        ("%%%", "a.json: did not arrive whole"),
        (base64.b64encode(b"{").decode(), "a.json: is not valid JSON"),
        (base64.b64encode(b"[" * 100_000).decode(), "a.json: is nested too deeply"),
        (base64.b64encode(b"[]").decode(), "a.json: a model config must be a JSON object"),
    ):
        shown = page.touch("file", "config", value, "a.json")
        assert rule in shown["wrong"]["config"]
        assert (shown["texts"]["raw"], shown["marks"]["earlier"]) == ("1 GiB", False)
    assert page.tab.state() == {}


def test_touches_of_nothing_change_nothing() -> None:
    page = Driven()
    before = page.shown
    for touch in (
        ("set", "colour", "red"), ("pressed", "nothing", ""), ("slid", "num_tokens", "-1"),
        ("slid", "num_tokens", "99999"), ("slid", "num_tokens", "9" * 1000), ("slid", "model", "1"),
    ):  # fmt: skip
        assert page.touch(*touch) == before


def test_a_layout_that_is_not_described_is_answered_ideally() -> None:
    texts = Driven(model="deepseek-v4-flash", num_tokens="1000").shown["texts"]
    assert texts["chart"] == "What 1 sequence can hold, by length (ideal)"
    assert texts["title"] == "deepseek-v4-flash, ideal, 1 rank"
    assert (texts["allocated_name"], texts["slack_more"]) == ("Allocated, ideally", "none, ideally")
    assert texts["allocated_more"] == "how vLLM 0.32.0 lays these layers out is not known: no blocks, no padding"
    assert "vLLM 0.32.0: how an engine packs compressed caches" in texts["remarks"]


def test_slack_that_no_length_explains_has_its_cause() -> None:
    shown = Driven(model="gemma-3-27b", num_sequences="15", kv_dtype="fp8").shown["texts"]
    assert shown["slack"] == "480 MiB"
    assert shown["slack_more"] == (
        "0 slots empty in each last block; 480 MiB pads smaller groups of layers; 5.71% of what is allocated"
    )


def test_the_mark_of_what_is_asked_is_on_the_line() -> None:
    page = Driven(model="gemma-3-27b", num_sequences="15", kv_dtype="fp8", num_tokens="8192")
    renderers = page.tab.roots()["chart"].select({"type": ColumnDataSource})
    line, marks = (
        next(source.data for source in renderers if source.data.keys() == keys)
        for keys in (
            {"tokens", "num_bytes", "length", "bytes"},
            {"tokens", "num_bytes", "length", "bytes", "colour", "size"},
        )
    )
    at_8192 = dict(zip(line["tokens"], line["num_bytes"], strict=True))[8192]
    assert (marks["tokens"][-1], marks["num_bytes"][-1]) == (8192, at_8192)
    texts = page.shown["texts"]
    assert texts["asked_key"] == "as asked, 32.87 GiB while their prompts are computed"
    assert texts["chart"].startswith("What 15 sequences can hold while their prompts are computed, by length")


def test_a_number_that_is_gone_is_no_multiple() -> None:
    page = Driven(num_tokens="8193")
    assert page.touch("set", "num_tokens", "8192")["texts"]["slack_was"] == "was 1.88 MiB: none now"


def test_an_error_names_its_field_as_the_page_does() -> None:
    shown = Driven(budget="12", source_tokens="no").shown
    assert shown["texts"]["earlier"] == (
        "Image or encoder tokens and Budget for KV cannot be used: these are the figures of the earlier values."
    )
    assert shown["wrong"]["budget"] == ("Budget for KV below 1 MiB needs a unit, such as '30 GiB' or '512 B', got '12'")


def test_what_does_not_fit_is_said() -> None:
    texts = Driven(num_sequences="16").shown["texts"]
    assert texts["verdict"] == "16 sequences of 8,192 tokens each do not fit: a block is held back"
    assert texts["most"] == "15 sequences of 8,192 tokens"
    assert texts["longest"] == "16 sequences of 8,176 tokens"
    shown = Driven(num_sequences="64").shown
    assert shown["texts"]["verdict"] == "64 sequences of 8,192 tokens each do not fit"
    assert (shown["widths"]["raw"], shown["widths"]["budget"]) == ("100.0000%", "25.0000%")
    assert Driven(model="gemma-3-27b", num_sequences="8").shown["texts"]["verdict"] == (
        "8 sequences of 8,192 tokens each fit once computed, not while all their prompts are"
    )
    nothing = Driven(num_sequences="10000", budget="1 MiB").shown["texts"]
    assert nothing["longest"] == "10,000 sequences: not even of 1 token"
    assert nothing["used"] == "1,024,000,000.00% of 1 MiB"
    ample = Driven(budget="1 TiB").shown["texts"]
    assert ample["longest"] == "1 sequence of 8,388,592 tokens (the model ends at 131,072)"
    assert Driven(model="rwkv-5-world-3b", max_model_len="100000").shown["texts"]["longest"] == (
        "1 sequence of any length"
    )


def test_the_page_has_the_colours_of_the_pictures() -> None:
    css = (Path(kvsim.view.__file__).parent / "static" / "app.css").read_text()
    for name, thing in (("raw", "live"), ("slack", "slack"), ("over", "preempted")):
        assert f"--{name}: {COLOURS[thing]};" in css
