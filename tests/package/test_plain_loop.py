"""A plain training loop with `adab2n.convert` follows the traces of the released code."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import backbone.adab2n as adab2n
from backbone.norms.shared import SharedNormState
from backbone.resnet18 import ResNet18
from tests import released_inputs as released

FOLDER = Path(__file__).parents[1] / "traces"
BOUND = 1e-9


class PlainBatchNorm:
    """Builds the network of the traces with torch's own BatchNorm."""

    shared = SharedNormState()

    def __call__(self, channels, *, spatial=None):
        return nn.BatchNorm2d(channels)


def normalized(images):
    mean, std = (np.array(values)[:, None, None] for values in (released.MEAN, released.STD))
    return torch.from_numpy((images / 255 - mean) / std)


def train(trace):
    n_classes = released.TASKS * released.CLASSES_PER_TASK
    net = ResNet18((3, trace["size"], trace["size"]), n_classes, PlainBatchNorm(), num_filters=trace["num_filters"])
    net = adab2n.convert(net.double(), "adab2n", kappa=trace["kappa"])
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(torch.from_numpy(released.first_weights(name, tuple(parameter.shape))))
    optimizer = torch.optim.SGD(net.parameters(), lr=trace["lr"])
    memory, losses, seen = [], [], 0  # (image, label, task, logits)
    for step, (task, images, labels) in enumerate(released.stream(trace["size"])):
        slots = [released.replayed_slots(step, which, len(memory), trace["minibatch_size"]) for which in (0, 1)]
        replayed = [memory[slot] for draw in slots for slot in draw]
        x = torch.cat([normalized(images), *(image for image, *_ in replayed)])
        y = torch.cat([torch.from_numpy(labels), *(label for _, label, *_ in replayed)])
        ids = [task] * len(images) + [each for _, _, each, _ in replayed]
        net.train()
        # --- what a loop needs for AdaB²N
        with adab2n.tasks(ids):
            out = net(x)
        if new := adab2n.new_parameters(net, optimizer):
            optimizer.add_param_group({"params": new})
        # ---
        current, distilled, labelled = out.split([len(images), len(slots[0]), len(slots[1])])
        loss = F.cross_entropy(current, y[: len(images)])
        if replayed:
            stored = torch.cat([logits for *_, logits in replayed[: len(slots[0])]])
            loss = loss + trace["alpha"] * F.mse_loss(distilled, stored)
            loss = loss + trace["beta"] * F.cross_entropy(labelled, y[len(images) + len(slots[0]) :])
            loss = loss + trace["lambd"] * adab2n.penalty(net)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        for i in range(len(images)):
            entry = (x[i : i + 1], y[i : i + 1], task, current[i : i + 1].detach())
            if len(memory) < trace["buffer_size"]:
                memory.append(entry)
            elif (slot := int(released.RESERVOIR_NUMBERS[seen] * (seen + 1))) < trace["buffer_size"]:
                memory[slot] = entry
            seen += 1
    return net.eval(), losses


@pytest.mark.parametrize("changed", [{}, {"kappa": 0.41}], ids=["same", "another kappa is noticed"])
def test_derpp_with_converted_layers_follows_the_released_code(changed):
    trace = json.loads((FOLDER / "derpp-adab2n.json").read_text())
    net, losses = train(trace | changed)
    tensors = {name: tensor.detach().numpy() for name, tensor in net.state_dict().items()}
    differences = [np.abs(np.array(losses) - trace["losses"]).max()]
    logits = net(normalized(released.probe(trace["size"]))).detach().numpy()
    differences.append(np.abs(logits - trace["logits"]).max())
    for name, expected in trace["digests"].items():
        ours = released.digest(name, tensors[name])
        differences.append(np.max(np.abs(np.array(ours) - expected) / np.maximum(1, np.abs(expected))))
    for name, expected in trace["psi"].items():
        ours = [psi.item() for psi in net.get_submodule(name).psi]
        differences.append(np.abs(np.array(ours) - expected).max())
    assert (max(differences) <= BOUND) == (not changed), max(differences)
