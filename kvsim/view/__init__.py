"""What is looked at in a browser: the report and the app. It draws what the other parts have computed."""

from importlib.util import find_spec

from kvsim.errors import KvsimError


def need_bokeh(command: str) -> None:
    """Raises KvsimError that says what to install; asked before any other module of this package is imported."""
    if find_spec("bokeh") is None:
        raise KvsimError(f"{command} draws with Bokeh, which is not installed: pip install 'kvsim[app]'")
