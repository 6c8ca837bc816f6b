"""Network accounting: what each agent learns in linear gossip, from the mixing matrix."""

from .accounting import NetworkMu as NetworkMu
from .accounting import network_mu as network_mu
