"""What is broken on purpose is caught at once: by the seed that was found to catch it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from simulation.storm import StoryTold

CAUGHT_BY = Path(__file__).with_name("caught_by.json")
"""For each test the seed that catches what it breaks; `pytest tests/simulation --search-seeds` finds them anew."""


Play = Callable[[int], StoryTold | None]
FirstCaught = Callable[[int, Play, Play], tuple[int, StoryTold] | None]


@pytest.fixture
def first_caught(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> FirstCaught:
    """Plays the seed written down for the test, which is quick, and if that no longer catches what the test breaks, the others in order.
    A seed at which ``whole`` finds something as well proves nothing, and is never written down."""
    test = request.node.name
    again = pytestconfig.getoption("--search-seeds")

    def caught(most: int, play: Play, whole: Play) -> tuple[int, StoryTold] | None:
        seeds: dict[str, int] = json.loads(CAUGHT_BY.read_text())
        written = [] if again else [seed for seed in [seeds.get(test)] if seed is not None]
        for seed in (*written, *(seed for seed in range(most) if seed not in written)):
            story = play(seed)
            if story is not None and (seed in written or whole(seed) is None):
                if again:
                    CAUGHT_BY.write_text(json.dumps(dict(sorted((seeds | {test: seed}).items())), indent=0) + "\n")
                elif seed not in written:
                    print(f"seed {seed} catches it, not {written}: write it down by pytest tests/simulation --search-seeds -k '{test}'")
                return seed, story
        return None

    return caught
