"""The table of accelerators: what serves a flavor, what drivers call them, and the same table in the operators' guide."""

from __future__ import annotations

from pathlib import Path

import pytest
from forebay_pool.model.catalogue import ACCELERATORS, CARDS_MAX, MIB, SHARES_MILLI, accelerator_of, name_of, way_of, ways_of
from forebay_pool.model.types import Equivalent
from forebay_pool.store.flavors import scale, seeds
from hypothesis import given
from hypothesis import strategies as st

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "operators" / "flavors-and-prices.md"
BY_NAME = {one.name: one for one in ACCELERATORS}
TOLD = [
    ("NVIDIA H100 80GB HBM3", 81_559, "H100"),
    ("NVIDIA H100 80GB HBM3", 80_995, "H100"),  # as PyTorch sees it
    ("NVIDIA H100 PCIe", 81_559, "H100"),
    ("NVIDIA H100 NVL", 95_830, "H100-NVL"),
    ("NVIDIA H200", 143_771, "H200"),
    ("NVIDIA B200", 183_359, "B200"),
    ("NVIDIA A100-SXM4-40GB", 40_960, "A100-40GB"),
    ("NVIDIA A100-PCIE-40GB", 40_339, "A100-40GB"),
    ("NVIDIA A100-SXM4-80GB", 81_920, "A100-80GB"),
    ("NVIDIA A100 80GB PCIe", 81_051, "A100-80GB"),
    ("NVIDIA L40S", 46_068, "L40S"),
    ("NVIDIA L4", 23_034, "L4"),
    ("NVIDIA L4", 22_478, "L4"),
    ("NVIDIA A10", 23_028, "A10"),
    ("NVIDIA GeForce RTX 3090", 24_576, "RTX-3090"),
    ("NVIDIA GeForce RTX 4090", 24_564, "RTX-4090"),
    ("NVIDIA GeForce RTX 5090", 32_607, "RTX-5090"),
    ("NVIDIA RTX A6000", 49_140, "RTX-A6000"),
    ("NVIDIA RTX 6000 Ada Generation", 49_140, "RTX-6000-Ada"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97_887, "RTX-PRO-6000"),
    ("AMD Instinct MI210", 65_520, "MI210"),
    ("AMD Instinct MI250X / MI250", 65_520, "MI250-die"),
    ("AMD Instinct MI300X", 196_592, "MI300X"),
    ("AMD Instinct MI325X", 262_128, "MI325X"),
]
OTHERS = [
    ("NVIDIA A30", 24_576),
    ("NVIDIA GH200 480GB", 97_871),
    ("NVIDIA A10G", 23_028),
    ("NVIDIA L40", 46_068),
    ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40_192),
    ("NVIDIA A100-SXM4-80GB", 20_096),
    ("AMD Instinct MI300X", 24_574),
    ("NVIDIA L40S-24Q", 24_576),
    ("NVIDIA GeForce RTX 3090 Ti", 24_564),
    ("NVIDIA GeForce RTX 4090 D", 24_564),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", 16_376),
    ("Quadro RTX 6000", 24_576),
    ("cpu-dev", 65_520),
]


@pytest.mark.parametrize(("told", "mib", "name"), TOLD)
def test_a_model_is_known_by_what_its_driver_calls_it_and_by_its_memory(told: str, mib: int, name: str) -> None:
    assert name_of(told, mib * MIB) == name


@pytest.mark.parametrize(("told", "mib"), OTHERS)
def test_other_models_and_parts_of_devices_keep_their_names(told: str, mib: int) -> None:
    assert name_of(told, mib * MIB) == told


def test_every_model_of_the_table_is_known_by_its_own_name() -> None:
    assert {name for _, _, name in TOLD} | {"MI250"} == set(BY_NAME), "each is in the table of this test, but the card of two dies"
    for one in ACCELERATORS:
        for bytes_seen in (one.memory_mib * MIB, one.data_sheet_gb * 2**30):
            assert accelerator_of(one.name, bytes_seen) == one


def test_all_sizes_on_the_scale_are_served_by_both_vendors_at_the_fewest_devices() -> None:
    served = {one.name: {way.model: way for way in one.equivalents} for one in scale()}
    assert len(served) == 13 and len(seeds()) == 15
    for one in scale():
        assert {"MI210", "MI300X", "MI325X", "B200", "H200", "H100", "A100-80GB", "A100-40GB"} <= set(served[one.name]), one.name
        for way in one.equivalents:
            accelerator = BY_NAME[way.model]
            memory = accelerator.memory_mib * MIB
            assert memory * way.count * way.share_milli >= one.memory_bytes * 1000
            if way.count > 1:
                assert memory * (way.count - 1) < one.memory_bytes and way.count <= (accelerator.together_max or way.count)
            else:
                assert all(memory * milli < one.memory_bytes * 1000 for milli in SHARES_MILLI if milli < way.share_milli)
    small = {model: way.count * way.share_milli / 1000 for model, way in served["small.64gb"].items()}
    assert (small["MI210"], small["MI325X"], small["H200"], small["H100"], small["A100-40GB"], small["L4"]) == (1, 0.25, 0.5, 1, 2, 3)
    assert [served[name]["MI250"].count for name in ("medium.128gb", "4xlarge.2048gb", "48xlarge.24576gb")] == [1, 16, 192]


def test_pytorch_sees_less_of_nvidias_memory_and_as_many_devices_of_one_server_do() -> None:
    """The driver keeps up to 3 % for itself: by what PyTorch sees nothing else would serve a flavor."""
    for one in scale():
        for way in one.equivalents:
            accelerator = BY_NAME[way.model]
            if way.count <= CARDS_MAX and not way.model.startswith("MI"):
                assert way_of(way.model, accelerator.memory_mib * MIB * 97 // 100, None, one.memory_bytes) == way, (one.name, way)


@given(st.integers(1, 2**48), st.integers(1, 2**38), st.one_of(st.none(), st.integers(1, 1000)))
def test_a_way_holds_the_memory_and_no_smaller_one_does(memory_bytes: int, device_bytes: int, together_max: int | None) -> None:
    way = way_of("x", device_bytes, together_max, memory_bytes)
    if way is None:
        assert together_max is not None and device_bytes * together_max < memory_bytes
    elif way.count > 1:
        assert way.share_milli == 1000 and device_bytes * (way.count - 1) < memory_bytes <= device_bytes * way.count
    else:
        smaller = [milli for milli in SHARES_MILLI if milli < way.share_milli]
        assert device_bytes * way.share_milli >= memory_bytes * 1000 > max([device_bytes * milli for milli in smaller], default=0)


def test_a_flavor_of_a_file_without_equivalents_is_served_by_the_table(tmp_path: Path) -> None:
    file = tmp_path / "flavors.toml"
    named = 'equivalents = [{model = "x"}]'
    file.write_text(f'[[flavors]]\nname = "own.40gb"\nmemory = "40 GiB"\n[[flavors]]\nname = "mine"\nmemory = "1 GiB"\n{named}')
    own, mine = seeds(file)
    assert own.equivalents == ways_of(40 * 2**30) and Equivalent("L40S", 1) in own.equivalents
    assert mine.equivalents == (Equivalent("x"),)


def test_the_guide_has_the_same_table_with_a_source_for_each_model() -> None:
    lines = [line.strip("|").split("|") for line in GUIDE.read_text().splitlines() if line.count("|") == 6 and "](https://" in line]
    shown = [[cell.strip() for cell in cells] for cells in lines]
    assert shown == [
        [
            f"`{one.name}`",
            f"{one.data_sheet_gb} GB",
            f"{one.memory_mib:,} MiB",
            "any number" if one.together_max is None else str(one.together_max),
            f"[{'AMD' if one.source.startswith('https://rocm.docs.amd.com/') else 'NVIDIA'}]({one.source})",
        ]
        for one in ACCELERATORS
    ]
