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
    "pool": "#333333",
    "refused": "#a6408c",
    "preempted": "#c8102e",
    "running": "#0072b2",
    "waiting": "#7f7f7f",
}
"""Of levels and events, by the names that tables give them."""
