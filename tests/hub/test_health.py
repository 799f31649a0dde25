"""What the hub says of its database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from forebay_hub.health import ANSWERS, FRESH_SECONDS, TAKES, DatabaseLook
from jupyterhub.orm import Base
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def database() -> Iterator[Session]:
    """JupyterHub's tables, in memory."""
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        session.execute(text("INSERT INTO alembic_version VALUES ('abc')"))
        session.commit()
        yield session
    engine.dispose()


def test_a_database_that_cannot_be_written_is_told_from_one_that_does_not_answer(database: Session) -> None:
    clock = Clock()
    look = DatabaseLook(clock)
    assert look.trouble(database) is None
    database.execute(text("PRAGMA query_only = ON"))
    assert look.trouble(database) is None  # the last look is fresh
    clock.now += FRESH_SECONDS
    assert look.trouble(database) == TAKES
    database.execute(text("PRAGMA query_only = OFF"))
    database.execute(text("ALTER TABLE api_tokens RENAME TO away"))
    clock.now += FRESH_SECONDS
    assert look.trouble(database) == ANSWERS
    database.execute(text("ALTER TABLE away RENAME TO api_tokens"))
    clock.now += FRESH_SECONDS
    assert look.trouble(database) is None
    assert database.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == ["abc"]
