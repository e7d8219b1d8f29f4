"""The text of a report."""

import dataclasses

from keras_small.reports.report import LayerReport, Report


def kept(path, reason):
    return LayerReport(path, "Dense", weights_before=2, weights_after=2, reason=reason)


def test_reasons_stand_below_the_table_which_they_would_widen():
    long = "cannot be watched or replaced (ValueError: " + 200 * "x" + ")"
    layers = (
        LayerReport("a", "Dense", "dense", bits=4, error=0.25),
        *(kept(f"b{n}", "no format makes it smaller") for n in range(6)),
        kept("c", long),
        kept("d", ""),
    )
    lines = str(Report(layers, 10, 5, 40, 10)).splitlines()
    table = lines[: len(layers) + 2]
    assert max(map(len, table)) < 100
    assert [line.split(" | ")[6].strip() for line in table[2:]] == ["0.2500"] + ["0"] * 8
    assert lines[len(table) :][:2] == [
        "kept, no format makes it smaller: b0, b1, b2, b3 and 2 more",
        f"kept, {long}: c",
    ]
    assert lines[len(table) + 2].startswith("10 weights -> 5")


def test_without_reasons_the_totals_follow_the_table():
    report = Report((dataclasses.replace(kept("d", "x"), reason=""),), 10, 5, 40, 10)
    assert str(report).splitlines()[3].startswith("10 weights -> 5")
