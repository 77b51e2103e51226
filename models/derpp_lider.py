"""`derpp_lider`: LiDER on DER++."""

from models import derpp
from models.lider import LIPSCHITZ_DRAWS, Lider, lider_options
from utils.config.registry import MODELS


@MODELS.register("derpp_lider", help="LiDER on derpp", options=(*derpp.OPTIONS, *lider_options(0.3, 0.5)))
class DerppLider(Lider, derpp.Derpp):
    draw_names = (*derpp.Derpp.draw_names, *LIPSCHITZ_DRAWS)
