"""The Grafana dashboard asks for metrics that exist, with labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from chiasm.schema.output import EngineStats
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana/chiasm.json").read_text("utf-8"))
_NAME = re.compile(r"\b(?:chiasm:|process_)\w+")
# Of the names in the collector's texts; what Prometheus adds by itself when it scrapes:
_SCRAPED = {"instance", "le"}


def samples(server: RunningServer, engine: FakeEngine) -> dict[str, set[str]]:
    """Every sample's name with its labels, once there is something of everything."""
    engine.stats = EngineStats(
        encoder_seconds=(0.5,), encoder_exchanged_bytes=(7,), plan_reasons={"one": 7}, encoder_passes={"as is": 2}
    )
    server.chat()
    text = server.client.get("/metrics").text
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def targets() -> Iterator[tuple[str, dict[str, Any]]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target


def test_every_metric_of_it_exists(server: RunningServer, engine: FakeEngine) -> None:
    known = samples(server, engine)
    asked = set()
    for title, target in targets():
        names = _NAME.findall(target["expr"])
        assert names, title
        for name in names:
            assert name in known, f"{title}: {name}"
        asked.update(names)
        labels = set(re.findall(r"by \(([\w, ]+)\)", target["expr"])) | set(
            re.findall(r"{{(\w+)}}", target["legendFormat"])
        )
        assert labels <= known[names[0]] | _SCRAPED, title
    unseen = {_family(name) for name in known if name.startswith("chiasm:")} - {_family(name) for name in asked}
    assert unseen == set()


def _family(sample: str) -> str:
    return re.sub(r"_(bucket|sum|count|created|total)$", "", sample)


def test_it_is_one_that_grafana_reads() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for y in range(place["y"], place["y"] + place["h"]):
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])}
            assert not cells & places, panel["title"]
            places |= cells
    for _, target in targets():
        assert target["expr"].count("(") == target["expr"].count(")")
        assert target["datasource"]["uid"] == "${datasource}"


def test_the_page_about_metrics_names_all_of_them(server: RunningServer, engine: FakeEngine) -> None:
    text = (DOCS / "observability.md").read_text("utf-8")
    for name in samples(server, engine):
        family = re.sub(r"_(bucket|sum|count|created)$", "", name)
        if name.startswith("chiasm:") and not name.endswith("_created"):
            assert f"`{family.removeprefix('chiasm:')}`" in text, name
    for name in re.findall(r"^\| `(\w+)`", text, re.M):
        full = {f"chiasm:{name}", f"chiasm:{name}_bucket"}
        assert full & set(samples(server, engine)), name
