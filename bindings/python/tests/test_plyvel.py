"""Runs the tests of plyvel 1.5.1 through ``sheaf.compat.plyvel``.

The source distribution of plyvel is downloaded with pip, and is not part of this project. Without
a package index the tests are skipped, unless ``SHEAF_PLYVEL_TESTS`` names the test file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

# Tests that the guide lists as differences, with the reason.
EXCEPTIONS = {
    "test_comparator": "custom comparators are refused",
    "test_approximate_sizes": "it writes keys of up to 99,900 bytes, and a key has at most 65,535",
}

HEADER = """
import sys
from sheaf.compat import plyvel
sys.modules["plyvel"] = plyvel
"""


def test_file(target: Path) -> Path:
    """Return the test file of plyvel."""
    given = os.environ.get("SHEAF_PLYVEL_TESTS")
    if given:
        return Path(given)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    # The metadata is built with Cython and setuptools, which pip fetches too.
    fetched = subprocess.run([*command, "--dest", str(target), "plyvel==1.5.1"], capture_output=True, text=True)
    if fetched.returncode != 0:
        pytest.skip(f"plyvel cannot be downloaded: {fetched.stderr[-300:]}")
    with tarfile.open(next(target.glob("plyvel-*.tar.gz"))) as archive:
        archive.extractall(target, filter="data")
    return target / "plyvel-1.5.1" / "test" / "test_plyvel.py"


test_file.__test__ = False  # type: ignore[attr-defined]


def test_the_tests_of_plyvel_pass(tmp_path: Path) -> None:
    source = test_file(tmp_path)
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "conftest.py").write_text(HEADER)
    (suite / "test_plyvel.py").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    excluded = " and ".join(f"not {name}" for name in EXCEPTIONS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", excluded, str(suite)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=suite)
    print(run.stdout)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert f"{len(EXCEPTIONS)} deselected" in run.stdout


def test_a_comparator_is_refused(tmp_path: Path) -> None:
    from sheaf.compat import plyvel

    with pytest.raises(plyvel.Error, match="comparators are not supported"):
        plyvel.DB(
            str(tmp_path / "db"), create_if_missing=True, comparator=lambda a, b: 0, comparator_name=b"x"
        )


def test_a_repair_replaces_a_damaged_database(tmp_path: Path) -> None:
    from sheaf.compat import plyvel

    path = tmp_path / "db"
    with plyvel.DB(str(path), create_if_missing=True) as db:
        db.put(b"k", b"v")
    (path / "ROOT.0").write_bytes(b"a disaster")
    plyvel.repair_db(str(path))
    assert (tmp_path / "db.damaged").is_dir()
    with plyvel.DB(str(path)) as db:
        assert db.get(b"k") == b"v"


def test_sizes_of_ranges(tmp_path: Path) -> None:
    from sheaf.compat import plyvel

    with plyvel.DB(str(tmp_path / "db"), create_if_missing=True) as db:
        with db.write_batch() as batch:
            for index in range(1000):
                batch.put(b"%03d" % index, b"a" * 97)
        assert db.approximate_size(b"1", b"2") == 100 * 100
        assert db.approximate_sizes() == [] and db.approximate_sizes((b"", b"\xff"), (b"9", b"1")) == [
            100_000,
            0,
        ]
        pairs: list[Any] = [(1, 2), (b"1", None)]
        for bad in pairs:
            with pytest.raises(TypeError):
                db.approximate_size(*bad)
        with pytest.raises(TypeError):
            db.approximate_sizes(None)  # type: ignore[arg-type]
