"""One colour for each thing that pictures show, the same in all of them.

People who confuse red and green tell them apart, and so does a grey print where two lie side by side: blue is of use,
oranges are allocated and lost, and what is pale is free.
"""

COLOURS = {
    "live": "#0072b2",
    "slack": "#e69f00",
    "tail": "#e69f00",
    "reserved": "#f0c75e",
    "unused": "#d55e00",
    "padding": "#8a5a2b",
    "external": "#d9d9d9",
    "cached": "#bcd9e8",
    "blank": "#ffffff",
    "shared": "#6e6e6e",
    "pool": "#333333",
    "refused": "#a6408c",
    "preempted": "#c8102e",
    "running": "#0072b2",
    "waiting": "#7f7f7f",
}
"""Of levels and events, by the names that tables give them."""

OWNERS = ("#3681a1", "#671d87", "#35d485", "#4535d4", "#b75fdd", "#14475d")
"""Of requests side by side, given out in turn: whoever confuses any two of red, green and blue tells them apart from
each other and from the colours above.
"""
