"""Memory is flat: after the second task a run needs no more of it, however long it goes on."""

import json
import subprocess
import sys

from forked import ROOT

MEGABYTE = 2**20
BOUND = 4 * MEGABYTE
N_TASKS = 10

# A process of its own, so that the peak is this run's: prints the peak after every evaluation, of a run and of one that
# loses memory in every step. Not `ru_maxrss`, which starts from what the parent had.
CODE = r"""
import json, re, sys
import main, utils.run.execution
from utils.run.observers import Observer

class Peak(Observer):
    def __init__(self, leak):
        self.leak, self.lost, self.peaks = leak, [], []
    def on_step(self, step):
        self.lost.append(b"x" * self.leak)
    def on_evaluation(self, event):
        with open("/proc/self/status") as status:
            self.peaks.append(1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]))

build, peaks = utils.run.execution.build_observers, []
for leak in (0, 2**20):
    peak = Peak(leak)
    utils.run.execution.build_observers = lambda *a, **k: [*build(*a, **k), peak]
    assert main.main([*sys.argv[1:], "--seed", str(len(peaks))]) == 0
    peaks.append(peak.peaks)
print(json.dumps(peaks))
"""
COMMAND = ["--model", "derpp", "--norm", "adab2n", "--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8"]
COMMAND += ["--n_tasks", str(N_TASKS), "--buffer_size", "50", "--checkpoint_every", "5", "--log_every", "1"]
COMMAND += ["--save_model", "--num_threads", "1", "--non_verbose"]


def test_peak_does_not_grow_after_the_second_task_unless_memory_leaks(results):
    argv = [sys.executable, "-c", CODE, *COMMAND, "--results_path", str(results)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run, leaking_run = json.loads(done.stdout.splitlines()[-1])
    assert len(run) == len(leaking_run) == N_TASKS
    assert run[1] > 100 * MEGABYTE
    assert run[-1] - run[1] < BOUND
    assert leaking_run[-1] - leaking_run[1] > BOUND
