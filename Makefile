# Needs git, make and Python 3.11 to 3.13, nothing else.
VENV := .venv
BIN := $(VENV)/bin
# Options for the program behind a target: make demo ARGS=--full, make test ARGS="tests/unit -x".
ARGS :=
VLLM_VENV := .venv-vllm

.DEFAULT_GOAL := help
.PHONY: help demo soak soundness faults test lint format lock clean venv live-vllm live-vllm-hour

help:
	@echo "make demo    run a real request trace through everything, on this machine"
	@echo "make soak    half an hour of faults of all kinds against a stack of its own"
	@echo "make soundness  the auditor against 100,000 simulated faulty fleets, every byte of a bundle, every"
	@echo "             interleaving of a small deletion, kills at each step of a real one: an hour; make soak"
	@echo "             does it too"
	@echo "make faults  ten faults under ten seeds each on a local stack: 25 minutes"
	@echo "make live-vllm  real vLLM engines on this machine's CPU against the index: 3.5 GB, 25 minutes"
	@echo "make live-vllm-hour  an hour of two of them under load, bridges and broker killed all the while"
	@echo "make test    check and test everything"
	@echo "make lint    only the static checks"
	@echo "make format  lay out the code"
	@echo "make lock    resolve requirements.lock anew"
	@echo "make clean   stop the local stack and remove what these targets made"

demo: venv
	@$(BIN)/kvledger demo $(ARGS)

soak: venv
	@$(BIN)/kvledger simulate --soak $(ARGS)
	@$(MAKE) --no-print-directory soundness

soundness: venv
	@$(BIN)/python -m tests.model.auditor.soundness --runs 100000
	@$(BIN)/python -m tests.model.auditor.deletion_scope --seconds 600
	@$(BIN)/python -m tests.model.auditor.mutation
	@$(BIN)/python -m tests.acceptance.deletion_killed

faults: venv
	@$(BIN)/kvledger up
	@$(BIN)/kvledger simulate --matrix $(ARGS); code=$$?; $(BIN)/kvledger down; exit $$code

live-vllm: venv
	@sh .ci/vllm $(VLLM_VENV)
	@$(BIN)/python -m tests.live --venv $(VLLM_VENV) $(ARGS)

live-vllm-hour: venv
	@sh .ci/vllm $(VLLM_VENV)
	@$(BIN)/python -m tests.live.endurance --venv $(VLLM_VENV) $(ARGS)

test: lint
	@$(BIN)/python -m pytest $(ARGS)

lint: venv
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/mypy tests
	@$(BIN)/lint-imports --no-cache

format: venv
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

venv:
	@sh .ci/venv $(VENV)

lock: venv
	@sh .ci/lock $(VENV)

clean:
	@if [ -x $(BIN)/kvledger ]; then $(BIN)/kvledger down --wipe; fi
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
