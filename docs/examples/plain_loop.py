"""AdaB²N in a plain PyTorch loop: five tasks of two classes, with replay from a small memory."""

import random

import adab2n
import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
centres = torch.randn(10, 1, 8, 8)  # of ten classes
layers = nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10)
model = adab2n.convert(nn.Sequential(*layers), "adab2n")
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
memory = []  # (image, label, task)

for task in range(5):
    for _ in range(40):
        labels = torch.randint(2 * task, 2 * task + 2, (10,))
        current = [(centres[y] + torch.randn(1, 8, 8), y, task) for y in labels]
        batch = current + random.sample(memory, min(10, len(memory)))
        x, y = torch.stack([image for image, _, _ in batch]), torch.stack([label for _, label, _ in batch])
        with adab2n.tasks([t for _, _, t in batch]):
            out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        if memory:
            loss = loss + 0.01 * adab2n.penalty(model)
        if new := adab2n.new_parameters(model, optimizer):
            optimizer.add_param_group({"params": new})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory += current[:2]

model.eval()
y = torch.arange(10).repeat(50)
accuracy = (model(centres[y] + torch.randn(500, 1, 8, 8)).argmax(1) == y).float().mean()
print(f"accuracy on all ten classes: {100 * accuracy:.0f} %")
