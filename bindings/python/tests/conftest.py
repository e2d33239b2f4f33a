"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sheaf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


@pytest.fixture
def db(path: Path) -> Iterator[sheaf.Database]:
    with sheaf.open(path) as opened:
        yield opened


@pytest.fixture
def users(db: sheaf.Database) -> sheaf.Keyspace:
    return db["users"]
