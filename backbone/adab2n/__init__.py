"""AdaB²N, CN and TBBN as layers for any PyTorch network.

import adab2n

model = adab2n.convert(model, "adab2n")
for x, y, task in batches:                       # current and replayed samples together
    with adab2n.tasks(task):
        out = model(x)
    loss = cross_entropy(out, y) + 0.01 * adab2n.penalty(model)
    if new := adab2n.new_parameters(model, optimizer):
        optimizer.add_param_group({"params": new})
"""

from .adab2n import AdaB2N, AdaB2N1d, AdaB2N2d, AdaB2N3d, tasks
from .continual_norm import CN
from .conversion import convert, new_parameters, penalty, reestimate, weights
from .statistics import balanced_weights
from .tbbn import TBBN

__version__ = "1.0.0"
__all__ = [
    "CN",
    "TBBN",
    "AdaB2N",
    "AdaB2N1d",
    "AdaB2N2d",
    "AdaB2N3d",
    "balanced_weights",
    "convert",
    "new_parameters",
    "penalty",
    "reestimate",
    "tasks",
    "weights",
]
