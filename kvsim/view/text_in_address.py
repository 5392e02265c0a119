"""The text of a scenario in an address: compressed, and in letters that need no escaping there."""

import base64
import binascii
import zlib

from kvsim.errors import KvsimError
from kvsim.view.draft import MOST_BYTES

MOST_OF_ADDRESS = 6_000
"""Characters that the text of a scenario may take of an address, compressed."""


def packed(text: str) -> str:
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def unpacked(letters: str) -> str:
    """Raises KvsimError for what `packed` has not made, or of too long a text."""
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(base64.urlsafe_b64decode(letters + "=" * (-len(letters) % 4)), MOST_BYTES + 1)
        if len(content) <= MOST_BYTES and not unpacking.eof:
            raise KvsimError("the text in it was cut off")
        return content.decode()
    except (binascii.Error, ValueError, zlib.error):
        raise KvsimError("the text in it is broken") from None
