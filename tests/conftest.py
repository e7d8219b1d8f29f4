import os

# On JAX the suite compiles for most of its time, and what it compiles runs once or twice. Set
# before JAX is imported, and so in the processes that tests start.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Several processes of the suite share the cores, and threads of NumPy's products that wait for work
# keep a core busy: a third of the time of the compression's tests. Set before NumPy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import contextlib
import ctypes
import functools
import gc
import signal

import hypothesis
import pytest

# A shell lets its background jobs ignore interrupts, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples at every run, and no clock: a loaded machine is no failure.
hypothesis.settings.register_profile(
    "project", deadline=None, derandomize=True, max_examples=30, database=None
)
hypothesis.settings.load_profile("project")


# No backend is imported at the top: the process that only distributes the tests needs none.
@pytest.fixture(scope="session", autouse=True)
def _modules_set_aside():
    """Keras collects garbage whenever a layer drops a weight. With the modules of a backend in
    memory each collection takes 0.3 s, unless they are set aside."""
    import keras  # noqa: F401 - with the modules of its backend

    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _compiled_quickly():
    """TensorFlow optimizes no graph, and traces no training step twice to make the variables of
    its optimizer. The processes that tests start do what users' do."""
    import keras

    make = keras.Model.make_train_function

    @functools.wraps(make)
    def build_first(model, force=False):
        if model.built and model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        make(model, force)

    with pytest.MonkeyPatch.context() as patch:
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
            patch.setattr(keras.Model, "make_train_function", build_first)
        yield


@contextlib.contextmanager
def _without_graphs():
    """On TensorFlow, models train, evaluate and predict without a graph. Tracing one takes longer
    than the few steps of most tests, and TensorFlow keeps a part of it: a GB over the tests of the
    estimator."""
    import keras

    def run_eagerly(make):
        @functools.wraps(make)
        def make_eager(model, force=False):
            model.run_eagerly = True
            make(model, force)

        return make_eager

    with pytest.MonkeyPatch.context() as patch:
        if keras.backend.backend() == "tensorflow":
            for name in ("make_train_function", "make_test_function", "make_predict_function"):
                patch.setattr(keras.Model, name, run_eagerly(getattr(keras.Model, name)))
        yield


@pytest.fixture(scope="module")
def eagerly():
    """For files whose subject is not what is traced, with their fixtures."""
    with _without_graphs():
        yield


@pytest.fixture
def eagerly_once():
    """The same for single tests."""
    with _without_graphs():
        yield


def _seed(module):
    """Starts all generators anew, also those that a file of tests keeps."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    for rng in [x for x in vars(module).values() if isinstance(x, np.random.Generator)]:
        rng.bit_generator.state = np.random.default_rng(0).bit_generator.state


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef, request):
    """What tests share is made from the same seeds, whichever of them asks for it first."""
    if fixturedef.scope == "module":
        _seed(request.module)


@pytest.fixture(autouse=True)
def _seeded(request):
    """Every test starts from the same seeds, in float32, whatever ran before it."""
    import keras

    _seed(request.module)
    keras.config.set_dtype_policy("float32")
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="session", autouse=True)
def _freed_memory_given_back():
    """The commands let glibc keep what is freed, which here would be the most that any test took.
    The processes that tests start do what users' do."""
    from keras_tnattn_train.processes import backend

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "keep_freed_memory", lambda: False)
        yield


@pytest.fixture(scope="module", autouse=True)
def _forget_what_a_module_needed():
    """JAX keeps every function it compiled, several GiB over the whole suite, and glibc keeps
    pages between those in use."""
    import keras

    yield
    if keras.backend.backend() == "jax":
        import jax

        jax.clear_caches()
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def float64():
    """Enables float64 on JAX, which has it switched off."""
    import keras

    if keras.backend.backend() == "jax":
        import jax
        import jax.experimental

        # Older versions of JAX have it in another place, which newer ones warn about.
        where = jax if hasattr(jax, "enable_x64") else jax.experimental
        with where.enable_x64(True):
            yield
    else:
        yield
