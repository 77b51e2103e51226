#!/usr/bin/env bash
# Table 9, larger images and more subtle shifts, ER. 27 runs.
# Finished runs are not repeated and interrupted ones are resumed, so this may be started again at any time.
# Further flags are passed to every run: scripts/table9.sh --base_path DATA. In parallel: python -m scripts.reproduce run table9
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}

for seed in 0 1 2; do for norm in bn cn adab2n; do
    $PYTHON main.py --model er --norm $norm --dataset seq-imagenet-sub --buffer_size 2000 --seed $seed "$@"
    $PYTHON main.py --model er --norm $norm --dataset perm-mnist --buffer_size 500 --seed $seed "$@"
    $PYTHON main.py --model er --norm $norm --dataset seq-domainnet --buffer_size 2000 --seed $seed "$@"
done; done
