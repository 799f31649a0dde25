"""What is broken on purpose is caught at once: by the seed that found it the last time."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
from simulation.storm import StoryTold

CAUGHT_BY = Path(__file__).with_name("caught_by.json")
"""For each test the seed that catches what it breaks; `pytest tests/simulation --search-seeds` finds them anew."""


Caught = tuple[int, StoryTold] | None


@pytest.fixture
def first_caught(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Callable[[int, Callable[[int], StoryTold | None]], Caught]:
    """The first seed that catches what the test breaks, with its story: the one that did the last time, else the first of so many."""
    test, searches = request.node.name, pytestconfig.getoption("--search-seeds")

    def first(most: int, play: Callable[[int], StoryTold | None]) -> Caught:
        known: dict[str, int] = json.loads(CAUGHT_BY.read_text())
        last = [] if searches or test not in known else [known[test]]
        for seed in chain(last, range(most)):
            story = play(seed)
            if story is not None:
                if searches:
                    CAUGHT_BY.write_text(json.dumps(dict(sorted((known | {test: seed}).items())), indent=0) + "\n")
                return seed, story
        return None

    return first
