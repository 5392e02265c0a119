"""Where in the page of a scenario its problems stand, by the ids that `scenario_fields.html` gives."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

from kvsim.study.scenario_text import ScenarioText
from kvsim.view.draft import Problem

Mode = Literal["fields", "text"]
"""How a scenario is edited."""


def beside_fields(problems: Sequence[Problem], text: ScenarioText | None, mode: Mode) -> dict[str, Any]:
    """By the id of the field or table; those that belong nowhere; and all, for the text."""
    beside: defaultdict[str, list[str]] = defaultdict(list)
    loose: list[str] = []
    for problem in problems:
        id = _id_of(problem, text)
        (loose if id is None else beside[id]).append(problem.sentence)
    listed = [{"sentence": problem.sentence, "line": problem.line} for problem in problems]
    return {"beside": beside, "loose": loose if mode == "fields" else [], "all": listed}


def first_of(problems: Sequence[Problem], text: ScenarioText | None, mode: Mode) -> dict[str, Any] | None:
    """What is said of them in one place: the first, how many more, and the element or line that the first is about."""
    if not problems:
        return None
    first, more = problems[0], len(problems) - 1
    id = _id_of(first, text)
    if mode == "text":
        to = "text"
    elif id is None:
        to = "loose"
    else:
        to = f"{id}-problem" if id.startswith("t") else id
    return {
        "sentence": f"{first.sentence}, and {more:,} more" if more else first.sentence,
        "to": to,
        "line": first.line,
    }


def _id_of(problem: Problem, text: ScenarioText | None) -> str | None:
    fields = {} if text is None else {field.key: f"f{number}" for number, field in enumerate(text.fields)}
    tables = {} if text is None else {table.key: f"t{number}" for number, table in enumerate(text.tables)}
    return fields.get(problem.place.field or "") or tables.get(problem.place.table or " ")
