"""`seq-cifar10`: Split CIFAR-10, 5 tasks of 2 classes, buffers of 500 or 2,000 images (Tables 2 and 3)."""

from datasets.cifar import LAMBDA_OF_DERPP, Cifar
from datasets.image_cache import CACHED_OPTIONS
from utils.config.options import ByFidelity, Rule
from utils.config.registry import DATASETS

DERPP = ("derpp", "derpp_lider")
RULES = (
    Rule({"n_tasks": 5, "buffer_size": 500, "lr": 0.03}),
    Rule({"lr": ByFidelity(official=0.1, paper=0.03)}, when={"model": ("sgd", "joint")}),
    Rule({"alpha": 0.2, "beta": 0.5}, when={"model": DERPP}),
    Rule({"alpha": 0.1, "beta": 1.0}, when={"model": DERPP, "buffer_size": lambda size: size >= 2000}),
    *LAMBDA_OF_DERPP,
)


@DATASETS.register("seq-cifar10", help="Split CIFAR-10, 5 x 2 classes", options=CACHED_OPTIONS, rules=RULES)
class SeqCifar10(Cifar):
    name = "seq-cifar10"
    torchvision_name = "CIFAR10"
    n_classes, images_per_class = 10, (5000, 1000)
    class_names = "airplane automobile bird cat deer dog frog horse ship truck"
    content = "98c0f59ce43d8ef1"
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615)
