#!/usr/bin/env bash
# Figure 7, population statistics of all layers: the runs of Figure 4.
exec "$(dirname "$0")/fig4.sh" "$@"
