import pytest

from kvsim.cli import app
from kvsim.errors import KvsimError
from kvsim.model.geometry import uniform_geometry
from kvsim.view.calculator_fields import (
    DEFAULTS,
    LABELS,
    OF_SOURCE,
    Answer,
    Calculations,
    FieldsRefused,
    in_words_of_page,
    whole_number,
)


def answer(**fields: str) -> Answer:
    return Calculations().answer(DEFAULTS | fields)


def problems(**fields: str) -> dict[str, str]:
    with pytest.raises(FieldsRefused) as caught:
        answer(**fields)
    return dict(caught.value.problems)


def test_defaults_are_one_gib_of_sixteen() -> None:
    of = answer().accounting
    assert (of.raw_bytes, of.slack_bytes, of.used_share) == (2**30, 0, 1 / 16)


def test_one_sequence_is_counted_beside_all() -> None:
    got = answer(num_sequences="8")
    assert got.each.engine is not None
    assert (got.accounting.raw_bytes, got.each.engine.raw_bytes) == (8 * 2**30, 2**30)
    assert got.lines.lines[0].num_sequences == 8


def test_a_typed_geometry_is_what_is_typed() -> None:
    got = answer(source="typed", num_layers="2", num_kv_heads="3", k_dim="4", v_dim="6", num_tokens="500,000")
    assert got.sizing.ideal.bytes_per_token == 2 * 3 * (4 + 6) * 2
    assert got.sizing.max_model_len == 500_000, "nobody names a longest request: it is the one that is asked about"
    windowed = answer(source="typed", num_layers="2", num_kv_heads="1", k_dim="4", window="100", num_tokens="1000")
    assert windowed.sizing.ideal.raw_bytes == 100 * 2 * 8 * 2


def test_a_chosen_file_counts_if_it_is_asked_for() -> None:
    chosen = uniform_geometry(1, 1, 1, max_model_len=10_000)
    assert Calculations().answer(DEFAULTS | {"source": "config"}, chosen).sizing.ideal.bytes_per_token == 4
    assert Calculations().answer(DEFAULTS, chosen).sizing.model == "llama-3.1-8b"


def test_all_that_cannot_be_read_is_said_at_once() -> None:
    assert problems(block_size="x", num_tokens="1e3", budget="much", kv_dtype="fp6", model="llama-3.1-8c").keys() == {
        "block_size", "num_tokens", "budget", "kv_dtype", "model",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"model": "llama-3.1-8c"}, ("llama-3.1-8c",)),
        ({"kv_dtype": "fp6"}, ("llama-3.1-8b", "--kv-dtype", "fp6")),
        ({"tensor_parallel": "3"}, ("llama-3.1-8b", "--tensor-parallel", "3")),
        ({"pipeline_parallel": "33"}, ("llama-3.1-8b", "--pipeline-parallel", "33")),
        ({"block_size": "0"}, ("llama-3.1-8b", "--block-size", "0")),
        ({"num_sequences": "-1"}, ("llama-3.1-8b", "--sequences", "-1")),
        ({"num_tokens": "131073"}, ("llama-3.1-8b", "--tokens", "131073")),
        ({"num_tokens": "0"}, ("llama-3.1-8b", "--tokens", "0")),
        ({"max_model_len": "0"}, ("llama-3.1-8b", "--max-model-len", "0")),
        ({"engine": "tgi"}, ("llama-3.1-8b", "--engine", "tgi")),
        ({"budget": "0 GiB"}, ("llama-3.1-8b", "--budget", "0 GiB")),
        ({"budget": "much"}, ("llama-3.1-8b", "--budget", "much")),
        ({"budget": "12"}, ("llama-3.1-8b", "--budget", "12")),
    ],
)
def test_the_command_line_says_the_same(fields: dict[str, str], options: tuple[str, ...]) -> None:
    (field,) = fields
    budget = () if "--budget" in options else ("--budget", DEFAULTS["budget"])
    with pytest.raises(KvsimError) as refused:
        app(["size", *options, *budget], standalone_mode=False)
    assert problems(**fields) == {field: str(refused.value)}


@pytest.mark.parametrize("model", ["/etc/passwd", "../config.json", "hf:org/model", "", "."])
def test_only_names_of_the_catalogue_are_models(model: str) -> None:
    assert "neither a config.json nor one of the 110 models of the catalogue" in problems(model=model)["model"]


def test_what_is_known_of_a_refused_model_is_its_length() -> None:
    with pytest.raises(FieldsRefused) as caught:
        answer(model="llama-2-7b", num_tokens="8192")
    assert caught.value.max_model_len == 4096
    assert caught.value.problems == {"num_tokens": "num_tokens must not exceed max_model_len, got 8,192 for 4,096"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_layers": "10001"}, "num_layers must be between 1 and 10,000, got 10001"),
        ({"num_kv_heads": ""}, "'' is not a valid integer"),
        ({"k_dim": "0"}, "k_dim must be between 1 and 100,000, got 0"),
        ({"v_dim": "-1"}, "v_dim must be between 1 and 100,000, got -1"),
        ({"window": "all"}, "'all' is not a valid integer"),
    ],
)
def test_a_typed_geometry_has_bounds(fields: dict[str, str], message: str) -> None:
    (field,) = fields
    assert problems(source="typed", **fields) == {field: message}


def test_numbers_may_be_grouped() -> None:
    assert [whole_number(text) for text in ("8192", "8,192", " 1,048,576 ")] == [8192, 8192, 1_048_576]
    for text in ("8,19", "8.192", "1e3", "", "9" * 5000):
        with pytest.raises(ValueError, match="is not a valid integer"):
            whole_number(text)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "num_tokens must not exceed max_model_len, got 8,192 for 4,096",
            "Context length must not exceed the longest request, got 8,192 for 4,096",
        ),
        ("num_kv_heads must be > 0, got 0", "KV heads must be > 0, got 0"),
        ("'' is not a valid integer", "'' is not a valid integer"),
        ("tensor_parallel must divide the 4 query heads of a", "Tensor parallel must divide the 4 query heads of a"),
    ],
)
def test_the_page_says_labels_for_keys(message: str, said: str) -> None:
    assert in_words_of_page(message.split()[0], message) == said


def test_every_field_of_the_page_has_a_label() -> None:
    assert DEFAULTS.keys() - LABELS.keys() == {"source", "sha256", "label"}
    assert {name for names in OF_SOURCE.values() for name in names} <= DEFAULTS.keys()
