"""`joint`: all classes in one task, for the same number of epochs; the upper bound (JT in the paper)."""

from models.sgd import Sgd
from utils.config.registry import MODELS


@MODELS.register("joint", help="all tasks at once (JT)")
class Joint(Sgd):
    joint_training = True
