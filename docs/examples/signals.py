"""AdaB²N in a network for signals: the classes of a task differ in frequency."""

import adab2n
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv1d(1, 16, 9), adab2n.AdaB2N1d(16), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 6)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
time = torch.linspace(0, 1, 128)


def signals(labels):
    phase, noise = 6 * torch.rand(len(labels), 1), 0.3 * torch.randn(len(labels), 128)
    return (torch.sin(6 * (labels[:, None] + 1) * 3 * time + phase) + noise).unsqueeze(1)


for task in range(3):
    for _ in range(150):
        labels = torch.cat([torch.randint(2 * task, 2 * task + 2, (16,)), torch.randint(0, 2 * task + 2, (16,))])
        with adab2n.tasks(labels // 2):
            out = model(signals(labels))
        loss = nn.functional.cross_entropy(out, labels) + 0.01 * adab2n.penalty(model)
        if new := adab2n.new_parameters(model, optimizer):
            optimizer.add_param_group({"params": new})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

model.eval()
labels = torch.arange(6).repeat(50)
print(f"accuracy on all six classes: {100 * (model(signals(labels)).argmax(1) == labels).float().mean():.0f} %")
