"""Plans of runs for every table and figure of the paper, launchers that run them, and reports beside the paper."""
