import pytest

from kvsim.view.channel import Channel, Touch


def heard(said: str) -> list[Touch]:
    touches: list[Touch] = []
    channel = Channel()
    channel.when_touched(touches.append)
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
