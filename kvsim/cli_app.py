"""The command that opens the calculator and the simulator in a browser."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvsim.view.server import AppServer

PORT = 8642
"""Where the app listens unless told otherwise, so that a copied address works the next day."""


def mount(app: typer.Typer) -> None:
    """Make the command one of an application."""
    app.command("app")(serve)


def serve(
    folder: Annotated[Path, typer.Argument(help="Folder of the files that the page may read.")] = Path(),
    host: Annotated[
        str, typer.Option(help="Where to listen; anything but the loopback lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 is any that is free.")] = PORT,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Turn the knobs of kvsim in a browser: a page of this machine, which asks nobody else for anything.

    The address of the page says what it shows, so a copied link shows the same. Ctrl-C ends it.

    For example:

    - `kvsim app`
    - `kvsim app scenarios --port 0 --no-open`
    """
    from kvsim.errors import KvsimError
    from kvsim.view import need_bokeh

    need_bokeh("kvsim app")
    if not folder.is_dir():
        raise KvsimError(f"{folder}: must be a folder")
    from kvsim.view.server import is_loopback, run

    def say(server: "AppServer") -> None:
        print(f"kvsim app: {server.url} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if not is_loopback(host):
            print(
                f"warning: --host {host} lets everybody who reaches this machine use the page and read the files in "
                f"{folder.resolve()}; nothing is encrypted and nobody is asked for a password",
                file=sys.stderr,
                flush=True,
            )
        if open_:
            _open(server.url)

    run(folder, host, port, say)


def _open(url: str) -> None:
    """In a window, if there is a screen: a browser in the terminal would take it from the server."""
    import os
    import webbrowser

    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)
