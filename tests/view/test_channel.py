import logging

import pytest

from kvsim.view.channel import Channel, Touch


def heard(said: str) -> list[Touch]:
    touches: list[Touch] = []
    channel = Channel()
    channel.when_touched(touches.append, pytest.fail)
    channel.update(said=said)
    return touches


def test_a_touch_is_heard() -> None:
    assert heard('{"count": 1, "kind": "set", "name": "budget", "value": "1 GiB"}') == [Touch("set", "budget", "1 GiB")]
    assert heard('{"kind": "file", "name": "config", "value": null, "file_name": "a.json"}') == [
        Touch("file", "config", None, "a.json")
    ]


@pytest.mark.parametrize(
    "said",
    [
        "nonsense",
        "[]",
        "[" * 100_000,
        '{"kind": "set", "name": "budget"}',
        '{"kind": "set", "name": 1, "value": "1 GiB"}',
        '{"kind": "set", "name": "budget", "value": 1}',
        '{"kind": "eval", "name": "budget", "value": "1"}',
        '{"kind": ["set"], "name": "budget", "value": "1"}',
        '{"kind": "file", "name": "config", "value": "", "file_name": 1}',
    ],
)
def test_what_the_page_does_not_send_is_passed_over(said: str) -> None:
    assert heard(said) == []


def test_a_fault_is_said_to_the_page_and_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_touch: Touch) -> None:
        raise AssertionError("a state belongs to a recurrent layer" + "!" * 1000)

    said: list[str] = []
    channel = Channel()
    channel.when_touched(fail, said.append)
    with caplog.at_level(logging.ERROR):
        channel.update(said='{"kind": "set", "name": "budget", "value": "1 GiB"}')
    (sentence,) = said
    assert "an error of kvsim itself, AssertionError: 'a state belongs to a recurrent layer!" in sentence
    assert len(sentence) < 400
    assert "Traceback" in caplog.text
