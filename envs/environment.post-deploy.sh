#!/usr/bin/env bash
# Snakemake runs this once environment.yaml is installed: DeepSpeed's build asks for the torch beside it.
set -euo pipefail
DS_ACCELERATOR=cpu DS_BUILD_OPS=0 pip install --no-deps --no-build-isolation deepspeed==0.19.8
