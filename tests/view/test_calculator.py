"""The tab without a browser: what is said to it, and what it shows."""

import base64
import json
from typing import Any

from kvsim.view.calculator import MAX_UPLOAD_BYTES, Calculator
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
    shorter = page.touch("set", "model", "llama-2-7b")
    assert "num_tokens must not exceed" in shorter["wrong"]["num_tokens"]
    ends = page.touch("slid", "num_tokens", str(shorter["sliders"]["num_tokens"]["max"]))
    assert (ends["fields"]["num_tokens"], ends["wrong"]) == ("4,096", {})


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
        "num_query_heads": "4", "max_model_len": "4096", "num_tokens": "100",
    }  # fmt: skip
    assert "<b>.json: its layers are all alike" in shown["texts"]["note"]
    assert shown["texts"]["formula"] == "2 layers x 2 KV heads x (16 K + 16 V) x 2 B = 256 B"
    assert Driven(**page.tab.state()).shown["texts"]["formula"] == shown["texts"]["formula"]
    assert page.touch("set", "source", "catalogue")["fields"]["max_model_len"] == "", "it was the file's"


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
    assert "vLLM 0.32.0: how an engine packs compressed caches" in texts["remarks"]


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
    ample = Driven(budget="1 TiB").shown["texts"]
    assert ample["longest"] == "1 sequence of 8,388,592 tokens (the model ends at 131,072)"
    assert Driven(model="rwkv-5-world-3b", max_model_len="100000").shown["texts"]["longest"] == (
        "1 sequence of any length"
    )
