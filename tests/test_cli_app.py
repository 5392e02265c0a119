"""`kvsim app` as a command: what it says, and how it ends. What the page does is in tests/view."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.view.served import command, environment


def refused(*arguments: str | Path) -> str:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, env=environment(), timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_taken_port_is_one_message(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused(tmp_path, "--no-open", "--port", str(port))
    assert said == f"error: --port {port} is taken on 127.0.0.1: give another, or 0 for any that is free\n"


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "none", "--no-open") == f"error: {tmp_path}/none: must be a folder\n"


def test_another_machines_address_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, "--no-open", "--host", "192.0.2.1", "--port", "0")
    assert said == "error: --host 192.0.2.1 --port 0 cannot be listened on: Cannot assign requested address\n"


def test_sigterm_ends_it(tmp_path: Path) -> None:
    arguments = command(tmp_path, "--port", "0", "--no-open")
    process = subprocess.Popen(arguments, env=environment(), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=30)
    assert (process.returncode, rest) == (143, "")


def test_letting_others_in_is_warned_of(tmp_path: Path) -> None:
    arguments = command(tmp_path, "--host", "0.0.0.0", "--port", "0", "--no-open")
    process = subprocess.Popen(arguments, env=environment(), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = [process.stderr.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert said[0].startswith("kvsim app: http://0.0.0.0:")
    assert said[1].startswith("warning: --host 0.0.0.0 lets everybody who reaches this machine use the page")
    assert process.returncode == 0


def test_without_bokeh_it_says_what_to_install() -> None:
    program = (
        "import importlib.util as util\n"
        "real = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'bokeh' else real(name, *rest)\n"
        "from kvsim.cli import main\n"
        "import sys\n"
        "sys.argv = ['kvsim', 'app']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("error: kvsim app draws with Bokeh, which is not installed: pip install 'kvsim[app]'\n")


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_says_how_to_begin(option: str) -> None:
    done = subprocess.run(command(option), capture_output=True, text=True, env=environment())
    assert done.returncode == 0
    assert "kvsim app scenarios --port 0 --no-open" in done.stdout
