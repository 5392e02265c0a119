"""The app in a browser: what people do with it, and what it must not do."""

import contextlib
import hashlib
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from kvsim.cli import app
from kvsim.view.calculator import MAX_UPLOAD_BYTES
from tests.view.conftest import Opened, opened
from tests.view.served import served

HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=2>\"'}}{{ 7*7 }}"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("folder")) as url:
        yield url


def visit(tab: Opened, url: str) -> Page:
    """The page once it is joined to its session; nothing is asked of anybody else."""
    tab.page.on("request", lambda request: tab.complaints.append(request.url) if foreign(request.url, url) else None)
    tab.page.goto(url)
    tab.page.wait_for_selector("body[data-ready]")
    return tab.page


def foreign(asked: str, url: str) -> bool:
    return not asked.startswith((url.partition("?")[0], "data:"))


def text(page: Page, name: str) -> str:
    return page.locator(f"[data-text={name}]").inner_text()


def fill(page: Page, name: str, value: str) -> None:
    """Type into a box, and be done with it."""
    box = page.locator(f"[data-field={name}]")
    box.fill(value)
    box.press("Enter")


def comes_to(page: Page, name: str, expected: str) -> None:
    page.wait_for_function(
        "([name, expected]) => document.querySelector(`[data-text=${name}]`).textContent === expected",
        arg=[name, expected],
        timeout=5_000,
    )


def sized(**options: str) -> dict[str, Any]:
    """What `kvsim size --json` prints."""
    model = options.pop("model")
    arguments = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        app(["size", model, *arguments, "--json"], standalone_mode=False)
    answers: dict[str, Any] = json.loads(said.getvalue())
    return answers


def test_the_experiment_that_everyone_starts_with(browser: Browser, address: str) -> None:
    with opened(browser, width=1280, height=800) as tab:
        page = visit(tab, address)
        assert text(page, "raw_exact") == "1,073,741,824 B"
        fill(page, "num_tokens", "16384")
        comes_to(page, "raw_exact", "2,147,483,648 B")
        assert text(page, "raw_was") == "was 1 GiB: 2 times as much"
        page.click("[data-press=start]")
        comes_to(page, "raw_exact", "1,073,741,824 B")
        page.click("[data-press=eight_times_the_sequences]")
        comes_to(page, "raw_was", "was 1 GiB: 8 times as much")
        assert text(page, "raw_exact") == f"{8 * 2**30:,} B"
        page.click("[data-press=one_more_token]")
        comes_to(page, "slack_more", "15 slots empty in each last block; 0.18% of what is allocated")
        assert text(page, "slack_exact") == f"{8 * 15 * 131_072:,} B"
        page.click("[data-press=blocks_of_256]")
        comes_to(page, "slack_exact", f"{8 * 255 * 131_072:,} B")
        for part in ("form", ".try", ".figures", "[data-text=formula]", ".bar", "[data-text=most]", "canvas"):
            box = page.locator(part).first.bounding_box()
            assert box is not None
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= 800, f"{part} is seen without scrolling"
            assert box["x"] + box["width"] <= 1280
        assert page.evaluate("document.documentElement.scrollHeight") <= 800


def test_ten_random_settings_are_what_the_command_line_says(browser: Browser, address: str) -> None:
    drawn = random.Random(8)
    with opened(browser) as tab:
        page = visit(tab, address)
        for _ in range(10):
            asked = {
                "model": drawn.choice(["llama-3.1-8b", "qwen2.5-32b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v3"]),
                "kv_dtype": drawn.choice(["bf16", "fp8", "fp32"]),
                "tensor_parallel": drawn.choice(["1", "2", "4"]),
                "tokens": str(drawn.randrange(1, 32_769)),
                "sequences": str(drawn.randrange(1, 300)),
            }
            fill(page, "model", asked["model"])
            page.select_option("[data-field=kv_dtype]", asked["kv_dtype"])
            fill(page, "tensor_parallel", asked["tensor_parallel"])
            fill(page, "num_tokens", asked["tokens"])
            fill(page, "num_sequences", asked["sequences"])
            page.locator("[data-slider=block_size]").press(drawn.choice(["ArrowLeft", "ArrowRight", "PageUp", "Home"]))
            drag(page, "budget", drawn.random())
            comes_to(page, "sequences", sequences(asked))
            asked |= {name: page.input_value(f"[data-field={name}]") for name in ("block_size", "budget")}
            answers = sized(**asked)
            engine = answers["engine"]
            for name, key in (("raw", "raw_bytes"), ("allocated", "allocated_bytes"), ("slack", "slack_bytes")):
                comes_to(page, f"{name}_exact", f"{engine[key]:,} B")
            assert text(page, "formula") == answers["formula"]
            assert text(page, "used").startswith(f"{engine['used_share']:,.2%} of ")
            assert text(page, "slack_more").startswith(f"{engine['tail_slots'][0]:,} slot")
            assert text(page, "most").replace("no sequence", "0").startswith(f"{engine['most_sequences']:,}")
            longest = engine["longest_of_sequences"]
            assert ("not even of 1 token" if longest == 0 else f" of {longest:,} tokens") in text(page, "longest")


def drag(page: Page, name: str, share: float) -> None:
    """The thumb of a slider, from where it stands to a place."""
    slider = page.locator(f"[data-slider={name}]")
    box = slider.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    at, most = (int(slider.evaluate(f"slider => slider.{side}")) for side in ("value", "max"))
    page.mouse.move(box["x"] + 8 + (box["width"] - 16) * at / most, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 8 + (box["width"] - 16) * share, middle, steps=3)
    page.mouse.up()
    page.wait_for_function(
        """name => {
            const slider = document.querySelector(`[data-slider=${name}]`);
            return slider.value === slider.dataset.at;
        }""",
        arg=name,
    )


def test_a_slider_that_rushes_is_answered_where_it_comes_to_rest(browser: Browser, address: str) -> None:
    """It says where it is when it has been answered, not at every place that it passes."""
    with opened(browser) as tab:
        page = visit(tab, address)
        page.evaluate(
            """() => {
                const slider = document.querySelector("[data-slider=num_sequences]");
                for (let place = 0; place <= 100; place += 1) {
                    slider.value = place % 2 ? 9 : 3;
                    slider.dispatchEvent(new Event("input"));
                }
                slider.dispatchEvent(new Event("change"));
            }"""
        )
        page.wait_for_function("document.querySelector('[data-field=num_sequences]').value !== '1'")
        comes_to(page, "sequences", f"{page.input_value('[data-field=num_sequences]')} sequences of 8,192 tokens each")
        said = json.loads(page.evaluate("Bokeh.documents[0].get_model_by_name('calculator').said"))
        assert said["count"] <= 4


def sequences(asked: dict[str, str]) -> str:
    number, tokens = int(asked["sequences"]), int(asked["tokens"])
    return f"{number:,} sequences of {tokens:,} tokens each" if number > 1 else f"1 sequence of {tokens:,} tokens"


def test_a_copied_link_shows_the_same(browser: Browser, address: str) -> None:
    with opened(browser) as tab:
        tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = visit(tab, address)
        fill(page, "model", "gemma-3-27b")
        fill(page, "num_tokens", "8,193")
        page.click("[data-press=eight_times_the_sequences]")
        page.select_option("[data-field=kv_dtype]", "fp8")
        comes_to(page, "sequences", "8 sequences of 8,193 tokens each")
        page.wait_for_url("**/?model=gemma-3-27b&kv_dtype=fp8&num_tokens=8193&num_sequences=8")
        page.click("#copy-link")
        page.wait_for_function("() => document.getElementById('copied').textContent === 'Link copied'")
        link = page.evaluate("navigator.clipboard.readText()")
        shown = {name: text(page, name) for name in ("raw_exact", "allocated_exact", "slack_exact", "formula", "most")}
    assert link == f"{address}?model=gemma-3-27b&kv_dtype=fp8&num_tokens=8193&num_sequences=8"
    with opened(browser) as tab:
        page = visit(tab, link)
        assert {name: text(page, name) for name in shown} == shown
        assert page.input_value("[data-field=num_tokens]") == "8,193"
        assert page.url == link


def test_a_bad_field_is_said_beside_it_and_the_figures_are_marked(browser: Browser, address: str) -> None:
    with opened(browser) as tab:
        page = visit(tab, address)
        assert not page.locator(".earlier.wrong").is_visible()
        fill(page, "tensor_parallel", "3")
        beside = page.locator("[data-wrong=tensor_parallel]")
        beside.wait_for()
        assert beside.inner_text() == "Tensor parallel must divide the 32 query heads of llama-3.1-8b, got 3"
        assert page.get_attribute("[data-field=tensor_parallel]", "aria-invalid") == "true"
        assert page.get_attribute("[data-field=tensor_parallel]", "aria-describedby") == beside.get_attribute("id")
        assert page.locator(".earlier.wrong").is_visible()
        assert text(page, "raw_exact") == "1,073,741,824 B"
        fill(page, "tensor_parallel", "2")
        comes_to(page, "raw_exact", "536,870,912 B")
        assert not beside.is_visible()
        assert not page.locator(".earlier.wrong").is_visible()


@pytest.mark.parametrize("query", [f"?model={HOSTILE}", f"?tab={HOSTILE}", f"?{HOSTILE}=1", "?num_tokens=%ff%00&tab="])
def test_nothing_of_an_address_is_markup(browser: Browser, address: str, query: str) -> None:
    with opened(browser) as tab:
        page = visit(tab, address + query)
        page.locator(".note.wrong:visible").wait_for()
        assert page.evaluate("window.hacked") is None
        assert page.locator("img").count() == 0
        assert "49" not in page.locator(".note.wrong:visible").inner_text()
        assert text(page, "raw") == "1 GiB"


def test_nothing_of_a_config_is_markup(browser: Browser, address: str, tmp_path: Path) -> None:
    hybrid = {
        "model_type": HOSTILE, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 10_000,
    }  # fmt: skip
    content = json.dumps(hybrid).encode()
    name = HOSTILE.replace("/", "") + ".json"
    with opened(browser) as tab:
        page = visit(tab, address)
        page.click("input[value=config]")
        page.set_input_files("#config", {"name": name, "mimeType": "application/json", "buffer": content})
        comes_to(page, "formula", "2 layers x 2 KV heads x (16 K + 16 V) x 2 B = 256 B")
        assert "model_type '<script>" in text(page, "remarks"), "it is assumed to be plain attention, and said as text"
        assert text(page, "title").startswith(name)
        page.wait_for_url(f"**/?source=config&**&sha256={hashlib.sha256(content).hexdigest()[:16]}")
        link = page.url
        page.goto(link)
        page.locator("[data-wrong=config]").wait_for()
        assert page.locator("[data-wrong=config]").inner_text().startswith("no config.json is chosen: choose '<script>")
        assert page.evaluate("window.hacked") is None
        assert page.locator("img").count() == 0


def test_a_file_that_is_too_large_is_not_taken(browser: Browser, address: str) -> None:
    with opened(browser) as tab:
        page = visit(tab, address)
        page.click("input[value=config]")
        too_large = {"name": "big.json", "mimeType": "application/json", "buffer": b" " * (MAX_UPLOAD_BYTES + 1)}
        page.set_input_files("#config", too_large)
        beside = page.locator("[data-wrong=config]")
        beside.get_by_text("and this file is larger").wait_for()
        assert beside.inner_text() == "big.json: a config must be at most 1,048,576 bytes, and this file is larger"
        assert "up to 1024 KiB" in page.locator(".drop").inner_text()


def test_a_plain_config_may_be_dropped(browser: Browser, address: str) -> None:
    plain = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 10_000,
    }  # fmt: skip
    with opened(browser) as tab:
        page = visit(tab, address)
        page.click("input[value=config]")
        page.evaluate(
            """content => {
                const dropped = new DataTransfer();
                dropped.items.add(new File([content], "config.json"));
                const event = new DragEvent("drop", { dataTransfer: dropped, bubbles: true, cancelable: true });
                document.querySelector("[data-drop]").dispatchEvent(event);
            }""",
            json.dumps(plain),
        )
        comes_to(page, "formula", "2 layers x 2 KV heads x (16 K + 16 V) x 2 B = 256 B")
        assert page.input_value("[data-field=num_layers]") == "2"
        page.wait_for_url(
            "**/?source=typed&label=config.json&num_layers=2&num_kv_heads=2&k_dim=16&v_dim=16&num_query_heads=4&max_model_len=10000"
        )


def test_models_are_searched_by_their_names(browser: Browser, address: str) -> None:
    """The box is empty while it is looked through, so that its list offers all; leaving it changes nothing."""
    with opened(browser) as tab:
        page = visit(tab, address)
        box = page.locator("[data-field=model]")
        box.focus()
        assert (box.input_value(), box.get_attribute("placeholder")) == ("", "llama-3.1-8b")
        box.press("Tab")
        assert box.input_value() == "llama-3.1-8b"
        assert page.locator("#models option").count() == 110
        assert page.url == address


def test_what_is_wrong_in_a_closed_section_opens_it(browser: Browser, address: str) -> None:
    with opened(browser) as tab:
        page = visit(tab, address)
        assert not page.locator("#source_tokens").is_visible()
        page.fill("#model", "llama-3.2-11b-vision")
        page.press("#model", "Enter")
        page.locator("[data-wrong=source_tokens]").get_by_text("must be given").wait_for()
        assert page.locator("#source_tokens").is_visible()
        assert text(page, "earlier").startswith("Image or encoder tokens cannot be used")


def test_a_config_is_awaited_in_plain_words(browser: Browser, address: str) -> None:
    with opened(browser) as tab:
        page = visit(tab, address)
        page.click("input[value=config]")
        comes_to(page, "earlier", "No config.json is chosen yet: these are the figures of llama-3.1-8b.")
        colours = "[...document.querySelectorAll('p.earlier, p.asked')].map((place) => getComputedStyle(place).color)"
        assert len(set(page.evaluate(colours))) == 1
        assert page.locator("[data-wrong]:visible").count() == 0


def test_for_print_the_chart_is_as_wide_as_paper_and_back(browser: Browser, address: str) -> None:
    with opened(browser) as tab:
        page = visit(tab, address)
        canvas = page.locator("#panel-calculator canvas").first
        before = canvas.bounding_box()
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        printed, card = canvas.bounding_box(), page.locator(".budget").bounding_box()
        assert before is not None
        assert printed is not None
        assert card is not None
        assert before["width"] > card["width"] > printed["width"] > 500
        assert card["width"] < 190 / 25.4 * 96, "paper of A4 and its margins"
        page.emulate_media(media="screen")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert canvas.bounding_box() == before


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, address: str, dark: bool) -> None:
    with opened(browser, width=390, height=844, dark=dark) as tab:
        page = visit(tab, address)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        background, colour = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        assert (sum_of(background) < sum_of(colour)) == dark


def sum_of(colour: str) -> int:
    return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
