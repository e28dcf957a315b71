# Every target makes its own environment first (.venv, from the lock files) and does nothing where it is up to date.
PYTHON ?= python3
export PYTHON

RUN := .venv/.run
DEV := .venv/.dev

.PHONY: help install demo serve test test-slow check bench clean

help:            ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | expand -t 12

install: $(DEV)  ## the environment, with what checks and tests need

demo: $(RUN)     ## start the service, ask it about page images, show what was reused
	@.venv/bin/python -m demo

serve: $(RUN)    ## the service on 127.0.0.1:8000 with the demo's pages, settings from CONDUIT_*
	@CONDUIT_DEMO=$${CONDUIT_DEMO-true} CONDUIT_LOG_FORMAT=$${CONDUIT_LOG_FORMAT-text} .venv/bin/python -m service

test: $(DEV)     ## the tests (a few minutes)
	@sh scripts/test

test-slow: $(DEV) ## kills, churn, soaks and floods
	@sh scripts/test slow

check: $(DEV)    ## format, lint, types, import contracts
	@sh scripts/check

bench: $(DEV)    ## the benchmarks, and the README's tables from their results
	@sh scripts/bench

clean:           ## remove the environment and everything generated
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis var *.egg-info

$(RUN): requirements.lock scripts/install pyproject.toml
	@sh scripts/install

$(DEV): $(RUN) requirements-dev.lock requirements-otel.lock
	@sh scripts/install dev
