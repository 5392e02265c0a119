from pathlib import Path

import pytest

from kvsim.errors import KvsimError
from kvsim.view.inside import inside


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file, a link to it, and links to what lies beside the folder."""
    (tmp_path / "secret.toml").write_text("secret")
    root = tmp_path / "work"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "a.toml").write_text("a")
    (root / "link.toml").symlink_to(root / "deep" / "a.toml")
    (root / "out.toml").symlink_to(tmp_path / "secret.toml")
    (root / "up").symlink_to(tmp_path)
    return root


def test_what_lies_in_the_folder_is_found(folder: Path) -> None:
    real = folder.resolve() / "deep" / "a.toml"
    for text in ("deep/a.toml", "./deep/a.toml", "link.toml", str(real)):
        assert inside(folder, text) == real
    assert inside(folder, ".") == folder.resolve()
    assert inside(folder, "yet/to/come.toml") == folder.resolve() / "yet" / "to" / "come.toml"


def test_a_folder_may_be_a_link_itself(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(folder)
    assert inside(tmp_path / "alias", "deep/a.toml") == folder.resolve() / "deep" / "a.toml"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("../secret.toml", "must not have .. in it"),
        ("deep/../deep/a.toml", "must not have .. in it"),
        ("/etc/passwd", "lies outside the folder"),
        ("out.toml", "lies outside the folder"),
        ("up/secret.toml", "lies outside the folder"),
        ("up/yet/to/come.toml", "lies outside the folder"),
        ("", "is not a path"),
        ("  ", "is not a path"),
        ("deep/a\0.toml", "is not a path"),
    ],
)
def test_all_else_is_refused(folder: Path, text: str, rule: str) -> None:
    with pytest.raises(KvsimError, match=rule):
        inside(folder, text)


def test_a_folder_with_a_longer_name_is_another(folder: Path) -> None:
    beside = folder.parent / "work2"
    beside.mkdir()
    with pytest.raises(KvsimError, match="lies outside"):
        inside(folder, str(beside / "a.toml"))


def test_a_message_cuts_a_long_path(folder: Path) -> None:
    with pytest.raises(KvsimError) as caught:
        inside(folder, "/" + "a" * 10_000)
    assert len(str(caught.value)) < 200
