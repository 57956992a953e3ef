# One word per task. `make setup` needs Python >= 3.11, a C/C++ compiler and make; all else is fetched from PyPI.
PYTHON ?= python3
BIN := .venv/bin

help: ; @grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 14
.PHONY: help setup
