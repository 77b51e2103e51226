"""`perm-mnist`: Permuted MNIST, 20 tasks that share the ten digits, each with a permutation of the pixels (Table 9).

The first task is permuted too, as is common; to a network without convolutions it makes no difference.
"""

from datasets.dataset import BASE_PATH, DOMAIN_OPTIONS
from datasets.mnist import Mnist
from datasets.permuted import Permuted
from utils.config.options import Rule, SameAs
from utils.config.registry import DATASETS

# Settings of Domain-IL on MNIST, permuted or rotated.
RULES = (
    Rule({"n_tasks": 20, "buffer_size": 500, "lr": 0.2, "batch_size": 128, "minibatch_size": SameAs("batch_size")}),
    Rule({"alpha": 1.0, "beta": 0.5}, when={"model": "derpp"}),
)


@DATASETS.register(
    "perm-mnist",
    help="Permuted MNIST, 20 tasks of all ten digits",
    options=(BASE_PATH, *DOMAIN_OPTIONS),
    rules=RULES,
    backbone="mlp",
)
class PermMnist(Mnist, Permuted):
    name = "perm-mnist"
