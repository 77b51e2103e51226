"""Memory is flat: after the second task a run needs no more of it, however long it goes on."""

import json
import subprocess
import sys
from pathlib import Path

import main

REPOSITORY = Path(main.__file__).resolve().parent
MEGABYTE = 2**20
BOUND = 4 * MEGABYTE
N_TASKS = 10

# A process of its own, so that the peak is this run's: prints the peak after every evaluation. Not `ru_maxrss`, which
# starts from what the parent had.
CODE = r"""
import json, re, sys
import main, utils.run.execution
from utils.run.observers import Observer

class Peak(Observer):
    peaks, leak = [], []
    def on_step(self, step):
        self.leak.append(bytearray(int(sys.argv[1])))
    def on_evaluation(self, event):
        with open("/proc/self/status") as status:
            self.peaks.append(1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]))

build = utils.run.execution.build_observers
utils.run.execution.build_observers = lambda *a, **k: [*build(*a, **k), Peak()]
code = main.main(sys.argv[2:])
print(json.dumps({"code": code, "peaks": Peak.peaks}))
"""
DIGITS = ["--dataset", "seq-digits", "--backbone", "mlp", "--hidden", "8"]


def peaks(results, *words, leak=0):
    """The peak after each of ten tasks, with every kind of writing turned on; `leak` bytes are lost in every step."""
    run = ["--model", "derpp", "--norm", "adab2n", "--n_tasks", str(N_TASKS), "--buffer_size", "50", *words]
    often = ["--checkpoint_every", "5", "--log_every", "1", "--save_model", "--num_threads", "1", "--non_verbose"]
    argv = [sys.executable, "-c", CODE, str(leak), *run, *often, "--results_path", str(results)]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert printed["code"] == 0
    assert len(printed["peaks"]) == N_TASKS
    return printed["peaks"]


def test_peak_of_a_long_run_does_not_grow_after_the_second_task(results):
    measured = peaks(results, *DIGITS, "--n_epochs", "2")
    assert measured[1] > 100 * MEGABYTE
    assert measured[-1] - measured[1] < BOUND, [round(peak / MEGABYTE, 1) for peak in measured]


def test_leak_would_show(results):
    measured = peaks(results, *DIGITS, leak=MEGABYTE // 8)
    assert measured[-1] - measured[1] > BOUND
