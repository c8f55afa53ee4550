"""`check` reports what `compile` would refuse."""

from __future__ import annotations

import tilewright as tw
from tilewright.zoo import build


def test_a_memory_limit_that_compiling_would_refuse_is_reported() -> None:
    model = build("mlp", sizes=(8, 4))
    assert tw.check(model).ok
    report = tw.check(model, max_memory=100)
    assert not report.ok
    assert "the limit is 100" in str(report.missing[0].error)
