"""All experiments that are declared as settings and published numbers."""

from .adp_vrsgp_tables import ADP_VRSGP
from .dpdl_tables import DPDL
from .dyn_d2p_tables import DYN_D2P
from .experiment import Experiment
from .partpsp_figures import PARTPSP_FIGURES
from .partpsp_tables import PARTPSP_TABLES
from .xie_figures import XIE

DECLARED: dict[str, Experiment] = {
    **ADP_VRSGP,
    **DPDL,
    **DYN_D2P,
    **PARTPSP_FIGURES,
    **PARTPSP_TABLES,
    **XIE,
}
