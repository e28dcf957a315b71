#!/bin/sh
# TTFT on one GPU: a random model of Qwen2.5-VL-3B's shape, 4, 8 and 16 images of 1,024 visual tokens, bf16.
# Under 10 minutes; needs some 20 GiB of GPU memory and 20 GiB of disk for the checkpoint. Further arguments override,
# for instance a try without a GPU:
#   benchmarks/gpu.sh --shape tiny --device cpu --images 2 --tokens 64 --rounds 1 --name ttft_gpu_try
set -eu
cd "$(dirname "$0")/.."
exec "${PYTHON:-.venv/bin/python}" -m benchmarks.ttft --shape 3b --images 4 8 16 --tokens 1024 --dtype bfloat16 \
    --device cuda --rounds 5 --name ttft_gpu "$@"
