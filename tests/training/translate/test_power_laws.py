import csv
import math

import keras
import numpy as np
import pytest
from scipy import stats
from translator_runs import SIZES, make_run

from keras_tnattn_train.programs import explain as main
from keras_tnattn_train.translate import plots
from keras_tnattn_train.translate.power_laws import fit_power_law

COLUMNS = (
    *("values", "exponent", "exponent_error", "x_min", "tail", "tail_share", "distance", "p"),
    *("lognormal_ratio", "lognormal_p", "exponential_ratio", "exponential_p"),
    *("truncated_power_law_ratio", "truncated_power_law_p", "verdict"),
)


def sample(kind, size=2000, seed=0):
    return getattr(stats, kind[0]).rvs(
        *kind[1:], size=size, random_state=np.random.default_rng(seed)
    )


class TestPlantedPowerLaws:
    @pytest.mark.parametrize("exponent", [1.5, 2.5, 4.5])
    def test_the_exponent_is_found(self, exponent):
        x = 0.01 * sample(("pareto", exponent - 1))
        result = fit_power_law(x, bootstraps=40).results
        assert tuple(result) == COLUMNS
        assert result["exponent"] == pytest.approx(exponent, abs=4 * result["exponent_error"])
        assert result["exponent_error"] < 0.1 * exponent
        assert result["p"] >= 0.1
        assert result["verdict"] in ("moderate", "good")
        assert result["exponential_ratio"] > 2
        assert result["exponential_p"] < 0.05
        # With a rate of 0, a truncated power law is this power law.
        assert -4 < result["truncated_power_law_ratio"] < 0.05

    def test_the_values_before_it_starts_are_left_out(self):
        # Three quarters are evenly spread from 0 to 1, where the power law starts.
        x = np.concatenate(
            [np.random.default_rng(1).uniform(size=3000), sample(("pareto", 1.5), 1000)]
        )
        result = fit_power_law(np.random.default_rng(2).permutation(x), bootstraps=40).results
        assert 0.95 < result["x_min"] < 2
        assert result["exponent"] == pytest.approx(2.5, abs=3 * result["exponent_error"])
        assert result["tail"] == (x >= result["x_min"]).sum()
        assert result["tail_share"] == pytest.approx(result["tail"] / 4000)
        assert result["p"] >= 0.1

    def test_the_fit_is_the_nearest_of_all_tails(self):
        # The tail has at least 50 values, so that all 61 longer ones are tried.
        x = np.sort(sample(("lognorm", 1.0), 110))
        result = fit_power_law(x, bootstraps=1).results
        fits = []
        for x_min in x[:61]:
            tail = x[x >= x_min]
            exponent = 1 + len(tail) / np.log(tail / x_min).sum()
            law = stats.pareto(exponent - 1, scale=x_min)
            fits.append((stats.kstest(tail, law.cdf).statistic, x_min, exponent, len(tail)))
        distance, x_min, exponent, size = min(fits)
        assert result["distance"] == pytest.approx(distance)
        assert result["x_min"] == x_min
        assert result["exponent"] == pytest.approx(exponent)
        assert result["exponent_error"] == pytest.approx((exponent - 1) / math.sqrt(size))
        assert result["tail"] == size

    def test_the_comparison_with_an_exponential_is_that_of_vuong(self):
        x = sample(("lognorm", 1.0), 300)
        result = fit_power_law(x, bootstraps=1).results
        tail, x_min = x[x >= result["x_min"]], result["x_min"]
        law = stats.pareto(result["exponent"] - 1, scale=x_min)
        other = stats.expon(x_min, (tail - x_min).mean())
        differences = law.logpdf(tail) - other.logpdf(tail)
        z = math.sqrt(len(tail)) * differences.mean() / differences.std()
        assert result["exponential_ratio"] == pytest.approx(z, rel=1e-3)
        assert result["exponential_p"] == pytest.approx(2 * stats.norm.sf(abs(z)), rel=1e-2)

    def test_a_cut_off_is_seen(self):
        # Density x ** -1.5 * exp(-x / 30) from 1 on: Pareto values are kept by the second factor.
        rng = np.random.default_rng(0)
        x = 1 + rng.pareto(0.5, 20_000)
        x = x[rng.uniform(size=len(x)) < np.exp(-(x - 1) / 30)][:4000]
        result = fit_power_law(x, bootstraps=20).results
        assert result["truncated_power_law_ratio"] < -5
        assert result["truncated_power_law_p"] < 0.01
        assert result["verdict"] in ("none", "with cut-off")

    def test_p_values_are_even(self):
        # Of true power laws a tenth is rejected with p < 0.1; a wrong test rejects all or none.
        p = [
            fit_power_law(sample(("pareto", 1.5), 150, seed), bootstraps=20).results["p"]
            for seed in range(20)
        ]
        assert 0.3 < np.mean(p) < 0.7
        assert np.mean(np.less(p, 0.1)) < 0.3


@pytest.mark.parametrize(
    ("kind", "better"),
    [
        (("lognorm", 0.5), "lognormal"),
        (("expon",), "exponential"),
        (("halfnorm",), "exponential"),
        (("norm",), "exponential"),
    ],
)
def test_other_distributions_are_not_power_laws(kind, better):
    result = fit_power_law(sample(kind, 4000), bootstraps=40).results
    assert result["verdict"] == "none"
    assert result[f"{better}_ratio"] < -2
    assert result[f"{better}_p"] < 0.05


def test_repeatable_by_seed():
    x = sample(("lognorm", 1.0), 300)
    first, same, other = (fit_power_law(x, 30, seed).results["p"] for seed in (0, 0, 1))
    assert first == same
    assert first != other


def test_zeros_and_signs_do_not_count():
    x = sample(("pareto", 1.5), 500)
    signs = np.where(np.arange(500) % 2, 1, -1)
    floor = np.full(400, 1e-9 * x.max())
    got = fit_power_law(np.concatenate([signs * x, np.zeros(300), floor]).reshape(30, 40), 10)
    assert got.results == fit_power_law(x, 10).results
    assert got.results["values"] == 500


@pytest.mark.parametrize(
    ("x", "verdict"),
    [
        (np.zeros((20, 20)), "at least 100 values other than zero"),
        (np.zeros(0), "at least 100 values other than zero"),
        (np.arange(1.0, 100.0), "at least 100 values other than zero"),
        (np.full(500, -3.0), "a tail of different values"),
        (np.r_[np.ones(500), np.nan], "finite values"),
        (np.r_[np.ones(500), np.inf], "finite values"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_cannot_be_tested(x, verdict, tmp_path):
    fit = fit_power_law(x)
    assert fit.results["verdict"] == f"not tested: expected {verdict}"
    assert tuple(fit.results) == COLUMNS
    assert math.isnan(fit.results["exponent"])
    assert fit.curves == {}
    plots.tails("a", [fit], [1], tmp_path / "tail.png")
    assert (tmp_path / "tail.png").read_bytes().startswith(b"\x89PNG")


def test_curves_are_the_shares_of_larger_values():
    x = 3 * sample(("pareto", 1.5))
    fit = fit_power_law(x, bootstraps=1)
    result, tail = fit.results, fit.magnitudes[-fit.results["tail"] :]
    np.testing.assert_array_equal(fit.magnitudes, np.sort(x))
    want = result["tail_share"] * (tail / result["x_min"]) ** (1 - result["exponent"])
    np.testing.assert_allclose(fit.curves["power_law"], want)
    shares = np.arange(result["tail"], 0, -1) / len(x)
    assert np.abs(fit.curves["power_law"] - shares).max() < 0.05
    assert np.abs(fit.curves["lognormal"] - shares).max() < 0.05
    assert np.abs(fit.curves["exponential"] - shares).max() > 0.1


@pytest.mark.slow
def test_the_command_writes_the_table(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setitem(SIZES, "model_dim", 32)  # two heads of 256 entries
    make_run(folder)
    arguments = [str(folder), "vi gatos", "--target", "I, saw"]
    arguments += ["--blocks", "encoder_0", "--heads", "2"]
    assert main([*arguments, "--bootstraps", "5", "--seed", "3"]) == 0
    printed = capsys.readouterr()
    assert "6 of 6 tests of power laws" in printed.err
    assert "support for a power law of E_LM: not tested" in printed.out
    with (folder / "explained/power_laws.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == ("block", "head", "matrix", *COLUMNS)
    assert [(row["block"], row["head"], row["matrix"]) for row in rows] == [
        ("encoder_0", "2", name) for name in ("P", "a", "b_a", "A_LM", "G_LM", "E_LM")
    ]
    assert rows[-1]["verdict"] == "not tested: expected at least 100 values other than zero"
    model = keras.saving.load_model(folder / "model.keras")
    entries = model.get_layer("encoder_0").attention.power_law_P[1]
    want = fit_power_law(keras.ops.convert_to_numpy(entries), bootstraps=5, seed=3).results
    assert {name: rows[0][name] for name in COLUMNS} == {k: str(v) for k, v in want.items()}
    assert (folder / "explained/encoder_0/P_tail.png").exists()
    assert main([*arguments, "--bootstraps", "0"]) == 0
    assert not (folder / "explained/power_laws.csv").exists()
    assert not (folder / "explained/encoder_0/P_tail.png").exists()
