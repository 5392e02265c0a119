"""What a page says of an error that nobody foresaw: where it happened is for the terminal."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvsim.rules import shown

_LOG = logging.getLogger(__name__)


def fault(error: Exception) -> str:
    """A sentence for the page; the terminal of the app is told all."""
    _LOG.error("an error of kvsim itself", exc_info=error)
    where = "where it happened stands in the terminal of kvsim app"
    return f"an error of kvsim itself, {type(error).__name__}: {shown(str(error))}; {where}"


@contextmanager
def faults_told(tell: Callable[[str], object]) -> Iterator[None]:
    """Tell of an error that nobody foresaw, in a sentence for the page.

    Bokeh writes it to the log alone, and who sits before the page would take what it showed before for the answer.
    """
    try:
        yield
    except Exception as error:
        tell(fault(error))
