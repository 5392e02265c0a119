"""What always holds between two decisions, numbered, so that a recount can name what broke.

 1  block 0 is never free and never in use
 2  every other block is either free or referenced
 3  no block is in the free queue twice
 4  a blank block has no key, a cached one has
 5  every key is listed under its blocks and no other
 6  reference counts agree with the block tables
 7  a table has as many blocks as its tokens need, null where a window has passed, and no two groups share one
 8  a block that was published and is in use carries the key of its content
 9  live and padding bytes agree with the tables
10  logical and window-saving bytes agree with the tables
11  the requests that hold memory are those that run, and hold what they have computed
12  no request runs and waits at once
13  what a request has computed, it knows, and it has not passed its end
14  the cached order has every run of cached blocks once, and no other
15  a chain is in use up to some block and resident up to another; its runs cover what lies between, the deepest first
16  a chain is in use as far as the requests that run hold it, and each of them is counted
17  a spare is the last block of its owner, and carries a key that is resident
18  the keys of a contested chain are a prefix, and each of their copies is in use or cached
19  free slots are kept once, in pieces as large as they can be, and counted
20  every slot is in one extent that a request holds or is free, and not both
21  a request has written no more than its extent has room for; written, reserved and unused slots agree with that
22  the host holds no more blocks than it has room for, and what moved there has moved back, was dropped, or is there
23  the requests that are on the host wait, and hold nothing on the device
"""

from kvsim.errors import InvariantError


def hold(number: int, condition: bool, sentence: str) -> None:
    """Raises InvariantError if the condition is false."""
    if not condition:
        raise InvariantError(number, sentence)
