"""What a page says of an error that nobody foresaw: where it happened is for the terminal."""

import logging

from kvsim.rules import shown

_LOG = logging.getLogger(__name__)


def fault(error: Exception) -> str:
    """A sentence for the page; the terminal of the app is told all."""
    _LOG.error("an error of kvsim itself", exc_info=error)
    where = "where it happened stands in the terminal of kvsim app"
    return f"an error of kvsim itself, {type(error).__name__}: {shown(str(error))}; {where}"
