"""What may import what, and what an import brings along."""

import ast
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from import_path import run_python

import keras_tnattn
from keras_tnattn import layers, metrics, models, schedules

ROOT = Path(__file__).resolve().parents[1]
# Each part of `keras_tnattn` may import those before it, and itself.
ORDER = [
    "typing",
    "checks",
    "errors",
    "ops",
    "initializers",
    "layers",
    "models",
    "search",
    "schedules",
    "metrics",
    "text",
    "estimator",
    "export",
]
# The same of `keras_small`.
SMALL_ORDER = [
    "storage",
    "coding",
    "pretrained",
    "asked",
    "survey",
    "runtimes",
    "formats",
    "planning",
    "building",
    "goals",
    "reports",
    "result",
    "compressing",
]
TENSORFLOW = {"tensorflow", "tensorflow_text", "tensorflow_datasets"}
# What a package may import of the others: the runtime is the ground floor, of the server, too.
PACKAGES = {
    "keras_tnattn_runtime": set(),
    "keras_tnattn_serving": {"keras_tnattn_runtime"},
    "keras_tnattn": {"keras_tnattn_runtime"},
    "keras_small": {"keras_tnattn_runtime", "keras_tnattn"},
    "keras_tnattn_train": {
        "keras_tnattn_runtime",
        "keras_tnattn_serving",
        "keras_tnattn",
        "keras_small",
    },
    "keras_tnattn_studies": {
        "keras_tnattn_runtime",
        "keras_tnattn",
        "keras_small",
        "keras_tnattn_train",
    },
}
FOLDERS = {
    "keras_tnattn_train": ROOT / "training/keras_tnattn_train",
    "keras_tnattn_studies": ROOT / "studies/keras_tnattn_studies",
}
OF_PACKAGES = [
    (package, path)
    for package in PACKAGES
    for path in sorted(FOLDERS.get(package, ROOT / package).rglob("*.py"))
]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    ("package", "path"),
    [pair for pair in OF_PACKAGES if pair[0] in ("keras_tnattn", "keras_small")],
    ids=lambda v: v if isinstance(v, str) else str(v.relative_to(ROOT)),
)
def test_imports_point_one_way(package, path):
    if path == ROOT / package / "__init__.py":
        return
    order = ORDER if package == "keras_tnattn" else SMALL_ORDER
    part = path.relative_to(ROOT).parts[1].removesuffix(".py")
    allowed = set(order[: order.index(part) + 1])
    for name in imports(path):
        if name.startswith(f"{package}."):
            assert name.split(".")[1] in allowed, name


# Where TensorFlow may be imported, beside the commands and studies.
WITH_TENSORFLOW = (
    "keras_tnattn/text",
    "keras_tnattn/estimator/batches.py",
    "keras_tnattn/export",
    "keras_small/runtimes",
    "keras_small/survey/on_backends.py",
)


@pytest.mark.parametrize(
    ("package", "path"), OF_PACKAGES, ids=lambda v: v if isinstance(v, str) else v.stem
)
def test_packages_stand_on_each_other(package, path):
    names = list(imports(path))
    used = {name.split(".")[0] for name in names}
    assert used & PACKAGES.keys() <= PACKAGES[package] | {package}
    assert not any(name.startswith("keras.src") for name in names)
    if package in {"keras_tnattn", "keras_small"} and used & TENSORFLOW:
        assert path.relative_to(ROOT).as_posix().startswith(WITH_TENSORFLOW)
    if package in {"keras_tnattn_runtime", "keras_tnattn_serving"}:
        assert "keras" not in used
        assert not used & TENSORFLOW or path.name == "saved_model.py"


# The same inside the commands. Tasks, the folders with a command, stand side by side.
COMMANDS = ROOT / "training/keras_tnattn_train"
TASKS = {path.parent.name for path in COMMANDS.glob("*/command.py")}
FLOORS = [
    {"options"},
    {"system"},
    {"processes"},
    {"data"},
    {"exports"},
    {"runs"},
    {"commands"},
    TASKS,
    {"tasks"},
    {"predict", "compress", "export", "programs"},
    {"cli"},
    {"demos", "__main__"},
]


def inner_imports(path):
    prefix = "keras_tnattn_train."
    return {name.removeprefix(prefix) for name in imports(path) if name.startswith(prefix)}


@pytest.mark.parametrize(
    "path", sorted(COMMANDS.rglob("*.py")), ids=lambda p: str(p.relative_to(COMMANDS))
)
def test_imports_of_commands_point_one_way(path):
    here = path.relative_to(COMMANDS).parts[0].removesuffix(".py")
    if here == "__init__":
        return
    (level,) = (i for i, floor in enumerate(FLOORS) if here in floor)
    allowed = set().union(*FLOORS[:level], {here})
    for name in inner_imports(path):
        assert name.split(".")[0] in allowed, name


def test_only_a_run_asks_which_process_this_is():
    # Other code reads as if there were one process.
    questions = {"process_id", "num_processes", "wait_for_all"}
    allowed = {"processes/devices.py", "processes/launching.py", "runs/run.py"}
    for path in COMMANDS.rglob("*.py"):
        names = {name.rpartition(".")[2] for name in imports(path)}
        assert not questions & names or str(path.relative_to(COMMANDS)) in allowed, path


@pytest.mark.parametrize(
    "root",
    [
        "keras_tnattn",
        "keras_small",
        "keras_tnattn_runtime",
        "keras_tnattn_serving",
        "training/keras_tnattn_train",
        "studies/keras_tnattn_studies",
    ],
)
def test_no_modules_import_each_other_in_a_circle(root):
    folder = ROOT / root
    modules = {}
    for path in folder.rglob("*.py"):
        parts = (folder.name, *path.relative_to(folder).with_suffix("").parts)
        modules[".".join(parts).removesuffix(".__init__")] = path
    ahead = {
        name: {other for other in imports(path) if other in modules and other != name}
        for name, path in modules.items()
        if path.name != "__init__.py"
    }
    done = set()

    def visit(name, behind):
        assert name not in behind, [*behind, name]
        if name not in done:
            for other in ahead.get(name, ()):
                visit(other, [*behind, name])
            done.add(name)

    for name in ahead:
        visit(name, [])


def test_the_tasks_are_found():
    assert {"classify", "rules", "nodes", "translate"} <= TASKS


def test_a_saved_layer_comes_back_in_a_process_that_only_imports_the_package(tmp_path):
    left_out = {"tensorflow", "keras_tnattn.export", "keras_tnattn.text.words"}
    path, x = str(tmp_path / "model.keras"), np.ones((2, 3, 8), "float32")
    parts = [keras.Input((None, 8)), layers.TTDense(4), layers.TensorizedSpectralAttention(2)]
    model = keras.Sequential(parts)
    model.save(path)
    outputs = model.predict(x, verbose=0).tolist()
    load = f"model = keras.models.load_model({path!r}); x = np.ones({x.shape}, 'float32'); "
    code = f"assert np.allclose(model.predict(x, verbose=0), {outputs}, atol=1e-6)"
    code += f"; import sys; assert not {left_out} & set(sys.modules)"
    imports = "import keras, keras_tnattn, numpy as np"
    run_python("-c", f"{imports}; {load}{code}", backend="numpy")


def test_classes_are_saved_under_the_name_of_the_package():
    # Also without it Keras finds a class, by its module, until that module moves.
    modules = (layers, models, metrics, schedules)
    public = [thing for module in modules for thing in vars(module).values()]
    classes = [c for c in public if isinstance(c, type) and hasattr(c, "get_config")]
    assert len(classes) > 25
    for c in classes:
        assert keras.saving.get_registered_name(c) == f"keras_tnattn>{c.__name__}"


def test_the_citation_names_this_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {keras_tnattn.__version__}\n" in citation


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "studies/benchmarks", "training"])
def test_no_script_hides_a_standard_module(folder):
    # `python FOLDER/script.py` looks in FOLDER first. JAX tries `compression`, of Python 3.14.
    standard = sys.stdlib_module_names | {"compression", "annotationlib"}
    assert not standard & {path.stem for path in (ROOT / folder).glob("*.py")}


# The private attributes of Keras that the package reads or sets, for want of public ones.
PRIVATE_NAMES_OF_KERAS = {
    "keras_small/survey/inventory.py": {
        "_functional",
        "_layers",
    },  # lists of the layers that it lists
    "keras_small/survey/replacing.py": {
        "_inbound_nodes",
        "_outbound_nodes",
    },  # where a layer is used
    "keras_tnattn/export/signatures.py": {
        "_tf_trackable"
    },  # second copies of the weights of an export
    "keras_small/survey/graph_names.py": {"_flatten_layers"},
    "keras_small/storage/integer_kernels.py": {
        "_tracker"
    },  # weights of LoRA are added to a built layer
}


def private_names_of_keras():
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    things = (model, model.layers[1], keras.Sequential([keras.Input((2,))]))
    things = (*things, keras.export.ExportArchive())
    names = {name for thing in things for name in (*dir(thing), *vars(thing))}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def test_the_private_names_of_keras_are_few_and_listed():
    private, found = private_names_of_keras(), {}
    for _, path in OF_PACKAGES:
        used, own = set(), set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                own.add(node.name)
            elif isinstance(node, ast.Attribute):
                (own if isinstance(node.ctx, ast.Store) else used).add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used.add(node.value)
        if names := (used - own) & private:
            found[path.relative_to(ROOT).as_posix()] = names
    assert found == PRIVATE_NAMES_OF_KERAS


# Functions with more than seven parameters. The list only shrinks: bundle the parameters of a new
# one that are one thought.
LARGEST_NUMBER_OF_PARAMETERS = 7
FUNCTIONS_OF_MANY_PARAMETERS = {
    "keras_small/compressing.py: compress",
    "keras_small/storage/base_low_rank.py: __init__",
    "keras_tnattn/layers/base_metric_attention.py: call",
    "keras_tnattn/layers/graph_attention.py: __init__",
    "keras_tnattn/layers/graph_attention.py: call",
    "keras_tnattn/layers/metric_attention.py: __init__",
    "keras_tnattn/layers/power_law_graph_attention.py: __init__",
    "keras_tnattn/layers/tensorized_graph_attention.py: __init__",
    "keras_tnattn/layers/tensorized_spectral_attention.py: __init__",
    "keras_tnattn/layers/tn_attention.py: __init__",
    "keras_tnattn/layers/transformer_decoder.py: call",
    "keras_tnattn/layers/tt_dense.py: __init__",
    "keras_tnattn/models/deep_tensor_network.py: deep_tensor_network",
    "keras_tnattn/models/graph_classifier.py: graph_classifier",
    "keras_tnattn/models/language_model.py: __init__",
    "keras_tnattn/models/language_model.py: language_model",
    "keras_tnattn/models/text_classifier.py: text_classifier",
    "keras_tnattn/models/translator.py: translator",
    "keras_tnattn/search/generator.py: __init__",
    "keras_tnattn_runtime/reader.py: stream",
}


def functions_of_many_parameters():
    for package, path in OF_PACKAGES:
        if package == "keras_tnattn_studies":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = node.args
                parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                names = {parameter.arg for parameter in parameters} - {"self", "cls"}
                if len(names) > LARGEST_NUMBER_OF_PARAMETERS:
                    yield f"{path.relative_to(ROOT).as_posix()}: {node.name}"


def test_functions_have_at_most_seven_parameters():
    found = set(functions_of_many_parameters())
    assert found <= FUNCTIONS_OF_MANY_PARAMETERS, "more than seven parameters"
    assert found == FUNCTIONS_OF_MANY_PARAMETERS, "no longer so many: take them out of the list"


def test_what_loads_runs_knows_the_layers_of_both_packages():
    code = "import keras_tnattn_train.runs.saved_models, keras; "
    names = (
        "keras_tnattn>TTDense",
        "keras_small>QuantizedTokenEmbedding",
        "keras_small>Compressed",
    )
    code += f"assert all(map(keras.saving.get_registered_object, {names}))"
    run_python("-c", code, backend="numpy")
