"""Runs the examples of docs/guide/python.md, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "python.md"


def test_the_examples_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not GUIDE.exists():
        pytest.skip("the guide is not in the source distribution")
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) >= 9
    names: dict[str, Any] = {}
    for block in blocks:
        # Blank lines in front, so that a traceback shows the line of the guide.
        lines = text[: block.start()].count("\n") + 1
        exec(compile("\n" * lines + block[1], str(GUIDE), "exec"), names)


def test_the_examples_of_the_package_run() -> None:
    import doctest

    import sheaf
    import sheaf.aio

    for module in (sheaf, sheaf.aio):
        result = doctest.testmod(module)
        assert result.attempted > 0 and result.failed == 0
