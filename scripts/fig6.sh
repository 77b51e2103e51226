#!/usr/bin/env bash
# Figure 6, batch statistics of all layers: the runs of Figure 4.
exec "$(dirname "$0")/fig4.sh" "$@"
