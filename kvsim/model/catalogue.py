"""Well-known models by name, and the one way from what a user writes to a geometry.

catalogue.json holds for each name the hub repository, the fields of its config.json that determine the
geometry, and where they were read; it goes through the same reading as any config.json.
"""

import difflib
import json
import os
from importlib import resources
from pathlib import Path
from typing import TypedDict, cast

from kvsim.errors import ModelError
from kvsim.model.geometry import ModelGeometry
from kvsim.model.hf_config import geometry_from_config, read_config
from kvsim.rules import shown

HUB_PREFIX = "hf:"
"""What a config on the Hugging Face hub starts with: "hf:org/model"."""


class CatalogueEntry(TypedDict):
    """One model: its hub repository, where the fields were read, and those that determine the geometry."""

    hub: str
    source: str
    config: dict[str, object]


def catalogue() -> dict[str, CatalogueEntry]:
    """Every model that ships with kvsim, by its lower-case name."""
    text = resources.files("kvsim.model").joinpath("catalogue.json").read_text(encoding="utf-8")
    return cast(dict[str, CatalogueEntry], json.loads(text))


def load_geometry(config: str, base: Path) -> ModelGeometry:
    """The geometry of a config.json at a path relative to `base`, of a catalogue name, or of "hf:org/model".

    What ends in .json or is a file is a path; a folder that is no catalogue name stands for its config.json.
    Raises ModelError with close names for an unknown name.
    """
    if config.startswith(HUB_PREFIX):
        from kvsim.model.hub import fetch_config

        return read_config(fetch_config(config.removeprefix(HUB_PREFIX)), config)
    path = base / config
    if config.endswith(".json") or os.path.isfile(path):
        return read_config(path)
    if os.path.isdir(path) and config.lower() not in catalogue():
        return read_config(path / "config.json")
    return catalogue_geometry(config)


def catalogue_geometry(name: str) -> ModelGeometry:
    """The geometry of a catalogue name, whatever its case; raises ModelError with close names for another."""
    models = catalogue()
    known = name.lower()
    if known in models:
        return geometry_from_config(models[known]["config"], known)
    close = difflib.get_close_matches(known[:100], models, n=5, cutoff=0.5)
    near = f"; close names: {', '.join(close)}" if close else ""
    raise ModelError(
        f"{shown(name)} is neither a config.json nor one of the {len(models)} models of the catalogue{near}"
    )
