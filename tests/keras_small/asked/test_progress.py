"""The bar with the remaining time."""

import time

from keras_small.asked.progress import printing, with_bar


def drawn(costs, monkeypatch, capsys, verbose=1):
    """Returns what a bar prints whose every entry takes ten seconds."""
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with printing(verbose):
        assert list(with_bar(range(len(costs)), costs)) == list(range(len(costs)))
    return capsys.readouterr().out


def test_a_bar_shows_shares_of_the_costs(monkeypatch, capsys):
    out = drawn([1.0, 3.0], monkeypatch, capsys)
    assert "25/100" in out
    assert "100/100" in out
    assert drawn([1.0, 3.0], monkeypatch, capsys, verbose=0) == ""


def test_a_bar_waits_until_a_percent_is_done(monkeypatch, capsys):
    out = drawn([0.001, 1.0, 1.0], monkeypatch, capsys)
    assert " 0/100" not in out
    assert "50/100" in out
