"""The token bucket."""

from __future__ import annotations

from gpufleet.web.rate_limit import TokenBucket


def test_a_burst_is_allowed_and_then_one_per_interval() -> None:
    """Time gives tokens back, never more than the burst."""
    now = [100.0]
    bucket = TokenBucket(2.0, 3, clock=lambda: now[0])

    assert [bucket.take() for _ in range(5)] == [True, True, True, False, False]
    now[0] += 1.9
    assert not bucket.take()
    now[0] += 0.1
    assert bucket.take()
    assert not bucket.take()
    now[0] += 1000
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
