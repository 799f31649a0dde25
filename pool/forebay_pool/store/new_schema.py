"""The schema of a new database, made at once: migrations, and what runs them, take half a second of a pool that starts for one program."""

from __future__ import annotations

import re
from importlib import resources

from sqlalchemy import Column, Engine, MetaData, String, Table, insert, inspect

from forebay_pool.store.tables import LEADERSHIP, METADATA

_VERSION = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))


def make_schema(engine: Engine) -> bool:
    """Makes it in a database without any table, as all migrations together would; False where there are some. Raises SQLAlchemyError."""
    with engine.begin() as connection:
        if inspect(connection).get_table_names():
            return False
        METADATA.create_all(connection)
        connection.execute(insert(LEADERSHIP).values(id=1, epoch=0, url=""))
        _VERSION.create(connection)
        connection.execute(insert(_VERSION).values(version_num=_latest()))
    return True


def _latest() -> str:
    """The number of the last migration."""
    names = (entry.name for entry in resources.files("forebay_pool.migrations.versions").iterdir())
    return max(found[1] for name in names if (found := re.fullmatch(r"v([0-9]{4})_\w+\.py", name)))
