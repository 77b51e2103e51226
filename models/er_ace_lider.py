"""`er_ace_lider`: LiDER on ER-ACE, most likely the paper's LiDER column."""

from models.er_ace import ErAce
from models.lider import LIPSCHITZ_DRAWS, Lider, lider_options
from utils.config.registry import MODELS


@MODELS.register("er_ace_lider", help="LiDER on er_ace", options=lider_options(0.1, 0.3))
class ErAceLider(Lider, ErAce):
    draw_names = (*ErAce.draw_names, *LIPSCHITZ_DRAWS)
