"""What is broken on purpose is caught at once: by the seed that was found to catch it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from simulation.storm import StoryTold

CAUGHT_BY = Path(__file__).with_name("caught_by.json")
"""For each test the seed that catches what it breaks; `pytest tests/simulation --search-seeds` finds them anew."""


Caught = tuple[int, StoryTold] | None


@pytest.fixture
def first_caught(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Callable[[int, Callable[[int], StoryTold | None]], Caught]:
    """The seed that catches what the test breaks, with its story: the one written down, or with --search-seeds the first of so many."""
    test = request.node.name

    def known(most: int, play: Callable[[int], StoryTold | None]) -> Caught:
        seed = json.loads(CAUGHT_BY.read_text()).get(test)
        story = None if seed is None else play(seed)
        if story is None:
            found = f"seed {seed} of {CAUGHT_BY.name} no longer catches it" if seed is not None else f"{CAUGHT_BY.name} has no seed for it"
            pytest.fail(f"{found}; find the first of {most} that does: pytest tests/simulation --search-seeds -k '{test}'")
        return seed, story

    def search(most: int, play: Callable[[int], StoryTold | None]) -> Caught:
        for seed in range(most):
            story = play(seed)
            if story is not None:
                seeds: dict[str, int] = json.loads(CAUGHT_BY.read_text())
                CAUGHT_BY.write_text(json.dumps(dict(sorted((seeds | {test: seed}).items())), indent=0) + "\n")
                return seed, story
        return None

    return search if pytestconfig.getoption("--search-seeds") else known
