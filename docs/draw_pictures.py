"""Draws the picture of README.md, and those on the pages about mechanisms.

.venv/bin/python docs/draw_pictures.py
"""

import csv
from pathlib import Path

import keras
import matplotlib as mpl
import numpy as np
from keras import ops

import keras_tnattn

mpl.use("Agg")
import matplotlib.pyplot as plt

PICTURES = Path(__file__).parent / "pictures"
BLUE, GREEN, ORANGE = "#2563a8", "#2f8f5b", "#d97a1e"


def to_numpy(x):
    return ops.convert_to_numpy(x)


def tokens(length, size, seed=0):
    return np.random.default_rng(seed).normal(size=(1, length, size)).astype("float32")


def draw_chain(axis, names, colors, legs):
    """Draws a chain of tensors; `legs` are the labels above and below each tensor."""
    for n, (name, color, (above, below)) in enumerate(zip(names, colors, legs, strict=True)):
        if n:
            axis.plot([n - 1, n], [0, 0], color="black", zorder=0)
        for label, end in ((above, 0.75), (below, -0.75)):
            if label:
                axis.plot([n, n], [0, end], color="black", zorder=0)
                axis.text(n, 1.3 * end, label, ha="center", va="center")
        axis.add_patch(plt.Circle((n, 0), 0.3, color=color))
        axis.text(n, 0, name, ha="center", va="center", color="white")
    axis.set(xlim=(-0.7, len(names) - 0.3), ylim=(-1.3, 1.3), aspect="equal")
    axis.axis("off")


def draw_tt_maps():
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    legs = [(f"$i_{n}$", f"$j_{n}$") for n in range(1, 5)]
    draw_chain(left, [f"$G_{n}$" for n in range(1, 5)], [BLUE] * 4, legs)
    for n in range(1, 4):
        left.text(n - 0.5, 0.12, f"$R_{n}$", ha="center")
    left.set_title("The kernel is a chain of cores")
    sizes, labels = [1024 * 1024 + 1024], ["Dense"]
    for rank in (64, 16, 4, 2):
        layer = keras_tnattn.TTDense(1024, tt_ranks=rank)
        layer.build((None, 1024))
        sizes.append(layer.count_params())
        labels.append(f"rank {rank}")
    bars = right.barh(labels[::-1], sizes[::-1], color=[BLUE] * 4 + ["gray"])
    right.bar_label(bars, [f" {size:,}" for size in sizes[::-1]])
    right.set(xscale="log", xlim=(500, 2e7), title="Weights of a 1024 by 1024 layer")
    save(figure, "tt_maps")


def draw_tensorized_attention():
    x = tokens(24, 16)
    layer = keras_tnattn.TensorizedSpectralAttention(1, damping=0.8)
    _, scores = layer(x, return_attention_scores=True)
    psi = to_numpy(scores)[0, 0]
    distance = np.abs(np.subtract.outer(np.arange(24), np.arange(24)))
    omega = np.where(distance > 0, 0.8**distance / 2, 0)
    theta = np.divide(psi, omega, out=np.zeros_like(psi), where=omega > 0)
    panels = {
        r"$\Theta$: similar keys": theta,
        r"$\Omega$: close in time": omega,
        r"$\Psi = \Omega * \Theta$: the graph": psi,
    }
    figure, axes = plt.subplots(1, 3, figsize=(9, 3))
    for axis, (title, values) in zip(axes, panels.items(), strict=True):
        axis.imshow(values, cmap="Blues")
        axis.set(title=title, xlabel="sends", xticks=[], yticks=[])
    axes[0].set_ylabel("receives")
    save(figure, "tensorized_attention")


def draw_graph_tensor_network():
    impulse = np.zeros((1, 41, 1), "float32")
    impulse[0, 20] = 1
    figure, axis = plt.subplots(figsize=(5, 3.2))
    options = {"later": (BLUE, "o"), "earlier": (ORANGE, "s"), "both": (GREEN, "^")}
    for receive_from, (color, marker) in options.items():
        layer = keras_tnattn.GraphTensorNetwork(damping=0.8, receive_from=receive_from)
        response = to_numpy(layer(impulse))[0, :, 0]
        axis.plot(
            np.arange(-20, 21),
            response,
            color=color,
            marker=marker,
            markersize=3,
            label=receive_from,
        )
    axis.set(xlabel="position, from the token that is 1", ylabel="output")
    axis.legend(title="receive_from", loc="upper left")
    save(figure, "graph_tensor_network")


def draw_low_pass():
    frequencies = np.linspace(0, np.pi, 65)
    waves = np.cos(np.outer(frequencies, np.arange(-200, 201)))[..., None].astype("float32")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    for damping, color in ((0.5, GREEN), (0.8, BLUE), (0.9, ORANGE)):
        layer = keras_tnattn.GraphTensorNetwork(damping=damping, receive_from="both")
        gains = to_numpy(layer(waves))[:, 200, 0]
        left.plot(frequencies / (2 * np.pi), gains, color=color, label=f"c = {damping}")
    left.set(xlabel="waves per token", ylabel="gain", yscale="log")
    left.set_title(r"$I + \Omega$, the graph over time")
    left.legend()
    keras.utils.set_random_seed(0)
    layer = keras_tnattn.TensorizedSpectralAttention(1, damping=0.8)
    for seed, color in ((0, BLUE), (1, GREEN), (2, ORANGE)):
        scores = layer(tokens(24, 16, seed), return_attention_scores=True)[1]
        psi = to_numpy(scores)[0, 0]
        roughness, signals = np.linalg.eigh(np.diag(psi.sum(0)) - psi)
        gains = 1 + np.einsum("ik,ij,jk->k", signals, psi, signals)
        right.plot(roughness, gains, "o", color=color, markersize=4, label=f"sequence {seed}")
    right.axhline(1, color="gray", linewidth=0.8)
    right.set(xlabel="roughness: eigenvalue of the Laplacian", ylabel="mean gain")
    right.set_title(r"$I + \Psi$, the graph of keys and time")
    right.legend()
    save(figure, "low_pass")


def draw_graph_attention():
    angles = 2 * np.pi * np.arange(8) / 8
    places = np.stack([np.cos(angles), np.sin(angles)], -1)
    adjacency = np.eye(8, k=1) + np.eye(8, k=-1) + np.eye(8, k=4) + np.eye(8, k=-4)
    adjacency[0, 7] = adjacency[7, 0] = 1
    layer = keras_tnattn.GraphAttention(1, self_loops=False)
    _, scores = layer(tokens(8, 6), adjacency=adjacency, return_attention_scores=True)
    scores = to_numpy(scores)[0, 0]
    figure, axes = plt.subplots(1, 2, figsize=(7, 3))
    for i, j in np.argwhere(adjacency):
        arrow = {"arrowstyle": "-|>", "lw": 5 * scores[i, j], "color": BLUE, "shrinkA": 9}
        arrow |= {"shrinkB": 9, "connectionstyle": "arc3,rad=0.12"}
        axes[0].annotate("", places[i], places[j], arrowprops=arrow)
    axes[0].scatter(*places.T, s=250, color="white", edgecolor="black", zorder=3)
    for n, place in enumerate(places):
        axes[0].text(*place, n, ha="center", va="center", zorder=4)
    axes[0].set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal", title="What a node receives")
    axes[0].axis("off")
    axes[1].imshow(scores, cmap="Blues")
    axes[1].set(title=r"The same as a matrix $\alpha$", xlabel="sends", ylabel="receives")
    save(figure, "graph_attention")


def draw_tn_attention():
    figure, axis = plt.subplots(figsize=(5, 2.6))
    names = ["$A$", "$A$", "$T$", "$A$", "$A$"]
    legs = [(rf"$\phi({n})$", "$y(3)$" if n == 3 else "") for n in range(1, 6)]
    draw_chain(axis, names, [BLUE, BLUE, ORANGE, BLUE, BLUE], legs)
    # The closed boundary: the last matrix is joined to the first.
    axis.plot(
        [-0.3, -0.5, -0.5, 4.5, 4.5, 4.3], [0, 0, -0.45, -0.45, 0, 0], color="gray", zorder=-1
    )
    axis.text(0.5, -0.7, "boundary $G$", color="gray", ha="center")
    axis.set_xlim(-1, 5)
    axis.set_title("Output of site 3: its transformation\nbetween the matrices of all the others")
    save(figure, "tn_attention")


def draw_power_law_graph_attention():
    layer = keras_tnattn.PowerLawGraphAttention(1, 12, residual_units=1, residual_dim=32)
    _, details = layer(0.3 * tokens(10, 12), return_details=True)
    panels = {
        r"$D_Q = Q^T Q$": "D_Q",
        r"$A_{LM}$: learned metric": "A_LM",
        r"$G_{LM} = a\,A_{LM}^P + b_a$": "G_LM",
        r"$E_{LM}$: attention": "E_LM",
    }
    figure, axes = plt.subplots(2, 2, figsize=(6.4, 5.8))
    axes = axes.flat
    for axis, (title, name) in zip(axes, panels.items(), strict=True):
        values = to_numpy(details[name])[0, 0]
        signed = values.min() < 0
        limit = np.abs(values).max()
        axis.imshow(
            values,
            cmap="RdBu_r" if signed else "Blues",
            vmin=-limit if signed else 0,
            vmax=limit,
        )
        axis.set(title=title, xticks=[], yticks=[])
    for axis in axes[:3]:
        axis.set(xlabel="features", ylabel="features")
    axes[3].set(xlabel="keys", ylabel="queries")
    save(figure, "power_law_graph_attention")


def draw_accuracy_against_weights():
    """Draws the picture of README.md, from the runs of the study on text classifiers."""
    topics = ("reuters", "newsgroups", "ohsumed")
    dims = (4, 8, 16, 32, 64)
    with (PICTURES.parent / "studies/tensorized_runs.csv").open(encoding="utf-8") as file:
        runs = [row for row in csv.DictReader(file) if row["setting"] == "paper"]

    def mean(attention, dim, column):
        values = [
            float(row[column])
            for row in runs
            if row["attention"] == attention
            and row["dataset"] in topics
            and int(row["dim"]) == dim
            and int(row["seed"]) < 3
        ]
        return np.mean(values)

    figure, axis = plt.subplots(figsize=(7.5, 4))
    for attention, name, color, place in (
        ("tsa", "tensorized spectral attention", BLUE, (14, 0)),
        ("dpa", "dot-product attention", "dimgray", (10, -42)),
    ):
        weights = [mean(attention, dim, "attention_weights") for dim in dims]
        accuracies = [100 * mean(attention, dim, "test_accuracy") for dim in dims]
        axis.plot(weights, accuracies, "o-", color=color, linewidth=2.5, markersize=7)
        axis.annotate(
            f"{name}\n{weights[-1]:,.0f} weights: {accuracies[-1]:.0f} %",
            (weights[-1], accuracies[-1]),
            xytext=place,
            textcoords="offset points",
            horizontalalignment="left" if attention == "tsa" else "right",
            verticalalignment="center",
            color=color,
            fontweight="bold",
        )
    axis.set(
        xscale="log",
        xlim=(40, 60_000),
        ylim=(35, 80),
        xlabel="weights of the attention layer",
        ylabel="accuracy, %",
        title="Telling the topic of a text",
    )
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3)
    save(figure, "accuracy_against_weights")


def save(figure, name):
    figure.tight_layout()
    figure.savefig(PICTURES / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


def main():
    PICTURES.mkdir(exist_ok=True)
    keras.utils.set_random_seed(0)
    for draw in (
        draw_tt_maps,
        draw_tensorized_attention,
        draw_graph_tensor_network,
        draw_graph_attention,
        draw_tn_attention,
        draw_power_law_graph_attention,
        draw_low_pass,
        draw_accuracy_against_weights,
    ):
        draw()


if __name__ == "__main__":
    main()
