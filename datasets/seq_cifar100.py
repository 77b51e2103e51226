"""`seq-cifar100`: Split CIFAR-100, 20 tasks of 5 classes as in the text; the released code has `--n_tasks 10`."""

from datasets.cifar import LAMBDA_OF_DERPP, Cifar
from datasets.image_cache import CACHED_OPTIONS
from utils.config.options import Rule
from utils.config.registry import DATASETS

RULES = (
    Rule({"n_tasks": 20, "buffer_size": 2000, "lr": 0.03}),
    Rule({"alpha": 0.1, "beta": 0.5}, when={"model": ("derpp", "derpp_lider")}),
    Rule({"lr_milestones": (35, 45), "lr_factor": 0.1}, when={"scenario": "offline"}),
    *LAMBDA_OF_DERPP,
)


@DATASETS.register("seq-cifar100", help="Split CIFAR-100, 20 x 5 classes", options=CACHED_OPTIONS, rules=RULES)
class SeqCifar100(Cifar):
    name = "seq-cifar100"
    torchvision_name = "CIFAR100"
    n_classes, images_per_class = 100, (500, 100)
    class_names = (
        "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly "
        "camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup "
        "dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower "
        "leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid "
        "otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray "
        "road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar "
        "sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle "
        "wardrobe whale willow_tree wolf woman worm"
    )
    content = "ba6230afcb3e96bd"
    mean, std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
