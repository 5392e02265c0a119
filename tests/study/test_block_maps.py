"""The block maps of a run: evenly apart, not too many, and read back as they were."""

from pathlib import Path

import polars as pl
import pytest

from kvsim.engine.tables import NoTables
from kvsim.errors import OutputError
from kvsim.memory.block_map import BlockMap, BlockRun
from kvsim.study.block_maps import MOST_MAPS, BlockMaps, read_block_maps
from kvsim.study.files import write_results
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.study.sums import write_sums
from tests.study.makers import write_scenario

HYBRID = Path(__file__).parents[2] / "scenarios" / "what_windows_save_in_a_hybrid_model.toml"


def blank(time_ns: int) -> BlockMap:
    return BlockMap(time_ns, 8, 4, 64, False, (BlockRun(0, 8, "blank"),))


@pytest.mark.parametrize(
    ("last_ms", "num_maps", "apart_ms"), [(0, 1, 0), (50, 6, 10), (620, 63, 10), (630, 32, 20), (100_000, 40, 2560)]
)
def test_moments_are_as_far_apart_as_keeps_them_few(last_ms: int, num_maps: int, apart_ms: int) -> None:
    maps = BlockMaps()
    for moment_ns in maps.moments():
        if moment_ns > last_ms * 10**6:
            break
        maps.add(blank(moment_ns))
    times = [each.time_ns for each in maps.maps]
    assert len(times) == num_maps < MOST_MAPS
    assert times == [place * apart_ms * 10**6 for place in range(num_maps)]


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("memory.block_ids=true",),
        ("memory.allocator=pow2",),
        ("workload.samples=2", "memory.sample_sharing=copy_on_write"),
    ],
)
def test_maps_of_a_run_are_read_back_and_say_what_its_rows_say(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    scenario = load_scenario(write_scenario(tmp_path), overrides)
    maps = BlockMaps()
    results = simulate(scenario, moments=maps.moments(), on_moment=maps.add)
    write_results(results, tmp_path, ("blocks",), maps)
    read = read_block_maps(tmp_path / "blocks.parquet")
    assert read == maps.maps
    assert len(read) >= MOST_MAPS // 2
    assert read[-1].time_ns <= results.totals.duration_ns
    assert {each.has_block_numbers for each in read} == {bool(overrides)}
    shape = results.shape
    for each in read:
        row = results.timeline.filter(pl.col("time_ns") <= each.time_ns).tail(1).to_dicts()[0]
        taken = sum(part.num_blocks for part in each.runs if part.state in ("held", "reserved", "unused"))
        assert taken * shape.block_bytes == row["allocated_bytes"]
        live = sum(part.written_tokens * part.slot_bytes for part in each.runs if part.state == "held")
        assert live == row["live_bytes"]
        assert sum(part.slack_bytes(each.block_bytes) for part in each.runs) == row["slack_bytes"]


def test_blocks_of_unlike_groups_have_slots_of_unlike_size() -> None:
    maps = BlockMaps()
    scenario = load_scenario(HYBRID, "workload.num_requests=20")
    results = simulate(scenario, moments=maps.moments(), on_moment=maps.add)
    sizes = {part.slot_bytes for each in maps.maps for part in each.runs if part.state == "held"}
    assert sizes == {group["bytes_per_token"] for group in results.description["geometry"]["groups"]}
    for each in maps.maps:
        row = results.timeline.filter(pl.col("time_ns") <= each.time_ns).tail(1).to_dicts()[0]
        live = sum(part.written_tokens * part.slot_bytes for part in each.runs if part.state == "held")
        assert live == row["live_bytes"]
        assert sum(part.slack_bytes(each.block_bytes) for part in each.runs) == row["slack_bytes"]


def test_maps_are_the_same_bytes_by_windows_and_by_steps(tmp_path: Path) -> None:
    written = []
    for fast in ("true", "false"):
        maps = BlockMaps()
        scenario = load_scenario(write_scenario(tmp_path), f"engine.fast_forward={fast}")
        simulate(scenario, tables=NoTables(), moments=maps.moments(), on_moment=maps.add)
        maps.write(tmp_path / "blocks.parquet")
        written.append((tmp_path / "blocks.parquet").read_bytes())
    assert written[0] == written[1]


def test_a_file_that_has_no_maps_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "blocks.parquet"
    with pytest.raises(OutputError, match=r"blocks\.parquet: cannot be read: not a file"):
        read_block_maps(path)
    path.write_text("no")
    with pytest.raises(OutputError, match="SHA256SUMS: cannot be read: No such file"):
        read_block_maps(path)
    write_sums(tmp_path, [path.name])
    with pytest.raises(OutputError, match="not a Parquet file that kvsim run wrote"):
        read_block_maps(path)
    pl.DataFrame({"time_ns": [1]}).write_parquet(path)
    with pytest.raises(OutputError, match="is not as kvsim run wrote it"):
        read_block_maps(path)
    write_sums(tmp_path, [path.name])
    with pytest.raises(OutputError, match="other columns"):
        read_block_maps(path)
