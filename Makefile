PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-slow lint wheel bench clean

# The environment is made once, and anew when what it must hold changes.
$(INSTALLED): pyproject.toml setup.cfg
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --upgrade pip
	$(RUN) -m pip install -e ".[dev]"
	touch $@

demo: $(INSTALLED)
	$(RUN) -m training.demo

test: $(INSTALLED)
	$(RUN) -m pytest -n 2

test-slow: $(INSTALLED)
	$(RUN) -m pytest -m slow

lint: $(INSTALLED)
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
