"""Network accounting: what each agent learns in linear gossip, from the mixing matrix."""

from .accounting import NetworkMu as NetworkMu
from .accounting import network_mu as network_mu
from .local import LocalMu as LocalMu
from .local import local_mu as local_mu
