"""`perm-digits`: Permuted MNIST in miniature, on the digits of `seq-digits` in their own size of 8x8 pixels."""

from dataclasses import replace

from datasets.dataset import DOMAIN_OPTIONS, Config, RawData
from datasets.perm_mnist import Permuted
from datasets.seq_digits import Digits
from utils.config.options import Rule
from utils.config.registry import DATASETS


@DATASETS.register(
    "perm-digits",
    help="Permuted MNIST's embedded twin, 20 tasks of all ten digits",
    options=DOMAIN_OPTIONS,
    rules=(
        Rule({"n_tasks": 20, "buffer_size": 200, "lr": 0.1}),
        Rule({"alpha": 1.0, "beta": 0.5}, when={"model": "derpp"}),
    ),
    backbone="mlp",
)
class PermDigits(Digits, Permuted):
    name = "perm-digits"
    image_shape = (1, 8, 8)
    mean, std = (0.0,), (1.0,)

    def read(self, config: Config) -> RawData:
        raw = super().read(config)
        return replace(raw, train_images=raw.train_images[..., ::2, ::2], test_images=raw.test_images[..., ::2, ::2])
