"""All experiments that are declared as settings and published numbers."""

from .adp_vrsgp_figures import ADP_VRSGP_FIGURES
from .adp_vrsgp_tables import ADP_VRSGP_TABLES
from .dpdl_figures import DPDL_FIGURES
from .dpdl_images import DPDL_IMAGES
from .dpdl_tables import DPDL
from .dyn_d2p_figures import DYN_D2P_FIGURES
from .dyn_d2p_tables import DYN_D2P_TABLES
from .experiment import Experiment
from .partpsp_figures import PARTPSP_FIGURES
from .partpsp_tables import PARTPSP_TABLES
from .xie_figures import XIE
from .xie_leaks import XIE_LEAKS
from .xie_mnist import XIE_MNIST

DECLARED: dict[str, Experiment] = {
    **ADP_VRSGP_FIGURES,
    **ADP_VRSGP_TABLES,
    **DPDL,
    **DPDL_FIGURES,
    **DPDL_IMAGES,
    **DYN_D2P_FIGURES,
    **DYN_D2P_TABLES,
    **PARTPSP_FIGURES,
    **PARTPSP_TABLES,
    **XIE,
    **XIE_LEAKS,
    **XIE_MNIST,
}
