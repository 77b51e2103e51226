"""Plug-ins in which their author forgot something, and one without a mistake."""

from __future__ import annotations

import re

import pytest

from scripts import check_plugin
from utils.config.registry import FAILED_FILES, REGISTRIES

MODEL = """
import numpy as np
import torch
from models.er import Er
from utils.config.options import Option, number
from utils.config.registry import MODELS, NORMS

@MODELS.register("{name}", help="")
class Trap(Er):
    compiles = {compiles}
    {body}
"""
LOST = """
    weight = 1.0

    def end_task(self, task, stream):
        self.weight = self.weight / 2

    def loss(self, batches, outputs, index):
        return {name: self.weight * term for name, term in super().loss(batches, outputs, index).items()}
"""
MEMORY = """
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.memory = {}

    def remember(self, batch, outputs, index):
        super().remember(batch, outputs, index)
        for image, label in zip(batch.images, batch.labels_host):
            self.memory[int(label)] = image

    def predict(self, inputs):
        if not self.memory:
            return self.net(inputs)
        images = self.augment.normalize(torch.stack([*self.memory.values()]))
        distances = torch.cdist(self.net.output(inputs).embedding, self.net.output(images).embedding)
        scores = inputs.new_full((len(inputs), self.n_classes), -1e9)
        return scores.index_copy(1, torch.tensor([*self.memory]), -distances)
"""
LOSS = """
    def loss(self, batches, outputs, index):
        return {{name: {factor} * term for name, term in super().loss(batches, outputs, index).items()}}
"""
GENERATOR = """
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.dice = np.random.default_rng(3)
"""
FINE = """
    weight = 1.0

    def begin_task(self, task, stream):
        self.weight = torch.rand(()).item()

    def loss(self, batches, outputs, index):
        factor = self.weight + np.random.rand() * torch.nn.functional.dropout(torch.ones(3)).sum()
        return {name: factor * term for name, term in super().loss(batches, outputs, index).items()}

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"]
"""
NORM = """
from torch import nn
from utils.config.options import Option, number
from utils.config.registry import NORMS

class Counting(nn.BatchNorm2d):
    calls = 0

    def forward(self, inputs):
        self.calls += self.training
        return super().forward(inputs) * (1 + self.calls / 100)

@NORMS.register("{name}", help="", options=({options}))
def build(channels, *, spatial, **options):
    return Counting(channels)
"""


def model(name: str, body: str, compiles: bool = False) -> str:
    return MODEL.format(name=name, body=body.strip(), compiles=compiles)


# By name, the file and keywords of what is said of it.
TRAPS = {
    "lost": (model("lost", LOST), ["resumed", "not restored: weight", "state_dict"]),
    "memory": (model("memory", MEMORY), ["--eval_only", "predict", "not restored: memory"]),
    "hiding": (NORM.format(name="hiding", options="Option('lr', number(0), ''),"), ["hiding.py", "'lr'", "rename"]),
    "foreign": (
        NORM.format(name="foreign", options="Option('alpha', number(0), '', 1.0),"),
        ["foreign.py", "'alpha'", "rename"],
    ),
    "unseeded": (
        model("unseeded", LOSS.format(factor="np.random.default_rng().random()")),
        ["another process", "not seeded"],
    ),
    "unordered": (
        model("unordered", LOSS.format(factor="len(next(iter({'a', 'bb', 'ccc', 'dddd', 'eeeee'})))")),
        ["another process", "order of a set"],
    ),
    "generator": (
        model("generator", GENERATOR + LOSS.format(factor="self.dice.random()")),
        ["resumed", "not restored: dice"],
    ),
    "counting": (NORM.format(name="counting", options=""), ["resumed", "not restored: Counting.calls;", "buffer"]),
    "uncompiled": (
        model("uncompiled", LOSS.format(factor="(1 if term > 0 else 2)"), compiles=True),
        ["--compile fails"],
    ),
    "misread": (model("misread", LOSS.format(factor="(1 + index.step)"), compiles=True), ["other weights"]),
}


def check_traps(folder, names, capsys) -> None:
    """Check a folder with these traps, each of which must be named, and a method without a mistake."""
    for name in names:
        (folder / f"{name}.py").write_text(TRAPS[name][0])
    (folder / "fine.py").write_text(model("fine", FINE))
    with pytest.MonkeyPatch.context() as patch:
        for registry in REGISTRIES:
            patch.setattr(registry, "_entries", dict(registry.entries()))
        try:
            assert check_plugin.main([str(folder), "--flags", "--debug_mode"]) == 1
        finally:
            FAILED_FILES.clear()
    output = capsys.readouterr().out
    reports = re.split("^(?:FAILED|ok) +", output, flags=re.MULTILINE)
    assert "ok     model fine\n" in output
    for name in names:
        (report,) = [report for report in reports if name in report.partition("\n")[0]]
        for keyword in TRAPS[name][1]:
            assert keyword in report
