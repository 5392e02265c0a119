"""The app's page: its tabs, and the address that says which one is open and what stands in it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode

from bokeh.core.properties import String
from bokeh.document import Document
from bokeh.embed.util import RenderItem
from bokeh.model import DataModel, Model
from markupsafe import Markup

from kvsim import __version__
from kvsim.rules import shown
from kvsim.view.calculator import Calculator
from kvsim.view.pages import TEMPLATES
from kvsim.view.scenario_tab import ScenarioTab

TITLE = "kvsim"


class Tab(Protocol):
    """One tab; the template `NAME.html` places its roots, and is given them as `roots` and the tab as `tab`."""

    @property
    def name(self) -> str:
        """How the address calls it: ?tab=NAME."""

    @property
    def title(self) -> str:
        """How people call it."""

    @property
    def scripts(self) -> tuple[str, ...]:
        """What of `static/` it needs, in this order, before it is embedded."""

    on_state: Callable[[], None] | None
    """Called when what `state` returns has changed."""

    def roots(self) -> dict[str, Model]:
        """Bokeh models by the names that the template places them by."""

    def state(self) -> dict[str, str]:
        """What stands in the address: only what differs from the defaults."""

    def restore(self, state: Mapping[str, str]) -> None:
        """Show what an address says; the tab itself says what of it cannot be shown."""

    def close(self) -> None:
        """The page is gone: nothing of it goes on."""


TABS: tuple[Callable[[Path], Tab], ...] = (lambda folder: Calculator(), ScenarioTab)
"""What makes each tab, in their order, from the folder that the app was started in."""


class Address(DataModel):
    """`query` goes to the page, which puts it into the address; `tab` comes from it, when somebody opens another."""

    query = String(default="")
    tab = String(default="")


class AppPage:
    """What one open page shows: a tab of each sort, the chosen one, and a line about a bad address."""

    def __init__(self, folder: Path, asked: Mapping[str, str], tabs: tuple[Callable[[Path], Tab], ...] = TABS) -> None:
        self.tabs = tuple(make(folder) for make in tabs)
        self.note = ""
        self._by_name = {tab.name: tab for tab in self.tabs}
        self._address = Address(name="address")
        named = asked.get("tab", self.tabs[0].name)
        if named not in self._by_name:
            self.note = f"This address names no tab of this page: tab must be one of {', '.join(self._by_name)}, "
            self.note += f"got {shown(named)}"
        self.chosen = self._by_name.get(named, self.tabs[0])
        state = {name: value for name, value in asked.items() if name != "tab"}
        if state and named in self._by_name:
            self.chosen.restore(state)
        for tab in self.tabs:
            tab.on_state = self._say_state
        self._say_state()
        self._address.on_change("tab", self._open)

    def add_to(self, document: Document) -> None:
        """Make the roots of all tabs those of a session's document."""
        document.title = TITLE
        for model in self.elements():
            document.add_root(model)

    def close(self) -> None:
        """Nothing of it goes on."""
        for tab in self.tabs:
            tab.close()

    def elements(self) -> dict[Model, str]:
        """The id of the element that each root is put into."""
        placed: dict[Model, str] = {self._address: "address"}
        for tab in self.tabs:
            placed |= {model: f"{tab.name}-{name}" for name, model in tab.roots().items()}
        return placed

    def html(self, token: str, scripts: list[str]) -> str:
        """The page; `token` opens the session's websocket, `scripts` are those of Bokeh."""
        elements = self.elements()
        item = RenderItem(token=token, roots=elements)  # type: ignore[arg-type]  # it takes ids of any sort
        return str(
            TEMPLATES.get_template("app.html").render(
                title=TITLE,
                version=__version__,
                tabs=[(tab, _places(tab, elements)) for tab in self.tabs],
                chosen=self.chosen,
                note=self.note,
                scripts=scripts,
                own_scripts=list(dict.fromkeys([*(name for tab in self.tabs for name in tab.scripts), "app.js"])),
                embed=[item.to_json()],
            )
        )

    def _open(self, _attribute: str, _old: str, name: str) -> None:
        if name in self._by_name:
            self.chosen = self._by_name[name]
            self._say_state()

    def _say_state(self) -> None:
        """The address is of the chosen tab alone: what stands in the others is not seen."""
        tab = {} if self.chosen is self.tabs[0] else {"tab": self.chosen.name}
        self._address.update(query=urlencode(tab | self.chosen.state()))


def asked_in(arguments: Mapping[str, list[bytes]]) -> dict[str, str]:
    """The last value of each name in an address, and of `set` all, as of --set; bytes that are no UTF-8 are replaced,
    Bokeh's own names left out."""
    return {
        name: (b"\n".join(values) if name == "set" else values[-1]).decode(errors="replace")
        for name, values in arguments.items()
        if values and not name.startswith("bokeh-")
    }


def _places(tab: Tab, elements: Mapping[Model, str]) -> dict[str, Markup]:
    """The element of each root, as the template is to place it."""
    return {name: Markup('<div id="{}"></div>').format(elements[model]) for name, model in tab.roots().items()}
