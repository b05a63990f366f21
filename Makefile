# make demo        from nothing to a first AUC curve
# make demo-sites  four sites as processes of this machine: one slow, one killed, one that comes back (4 minutes);
#                  ENGINE=nvflare: over NVFlare instead of Flower
# make test        every test, the linter and the type checker
# make test-nvflare  those across real sites on NVFlare, which `make test` leaves out (4 minutes); with no network but
#                  loopback, where this machine lets us
# make lint        only linter and type checker
# make bench       the speed of a round, against other ways to do the same work (about an hour)
PYTHON ?= python3
ENGINE ?= flower
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt

.PHONY: demo demo-sites test test-nvflare lint bench clean

demo: .venv/installed
	$(BIN)/fedsaddle run digits-auc

demo-sites: .venv/installed-$(ENGINE)
	$(BIN)/python examples/sites/demo.py --engine $(ENGINE)

test: .venv/installed-dev lint
	$(BIN)/python -m pytest -n 3 --dist loadgroup  # on two cores: tests across processes mostly wait

ALONE := $(shell unshare -rn ip link set lo up 2> /dev/null && echo "unshare -rn sh -c 'ip link set lo up && exec \"\$$@\"' -")

test-nvflare: .venv/installed-dev .venv/installed-nvflare
	$(ALONE) $(BIN)/python -m pytest tests/test_nvflare.py tests/test_doctor_kits.py

lint: .venv/installed-dev
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy

bench: .venv/installed
	$(BIN)/python benchmarks/speed/bench.py --preset standard

clean:
	rm -rf .venv runs build dist src/*.egg-info

.venv/python:
	$(PYTHON) -m venv .venv
	touch $@

.venv/installed: pyproject.toml constraints.txt | .venv/python
	$(INSTALL) --editable .
	touch $@

.venv/installed-flower: pyproject.toml constraints.txt | .venv/python
	$(INSTALL) --editable ".[flower]"
	touch $@ .venv/installed

.venv/installed-nvflare: pyproject.toml constraints.txt | .venv/python
	$(INSTALL) --editable ".[flower,nvflare]"
	touch $@ .venv/installed .venv/installed-flower

.venv/installed-dev: pyproject.toml constraints.txt | .venv/python
	$(INSTALL) --editable ".[dev]"
	touch $@ .venv/installed .venv/installed-flower
