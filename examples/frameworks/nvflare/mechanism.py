"""What a client of NVFlare 2.9 sends through its filters, with their defaults."""

import logging

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

logging.disable(logging.WARNING)


def filtered(a_filter, data):
    dxo = DXO(DataKind.WEIGHT_DIFF, data=data)
    return a_filter.process_dxo(dxo, Shareable(), FLContext()).data


def sparse_vector(update):
    """Of 20 numbers 2 are sent, so that the ledger says 0.1 + 2 * 0.1."""
    return filtered(SVTPrivacy(), {"weight": update})["weight"]


def beside_a_scalar(update):
    """The same of a model that has a number of no dimension, such as a temperature."""
    sent = filtered(SVTPrivacy(), {"weight": update[1:], "temperature": update[0]})
    return np.append(sent["temperature"], sent["weight"])


def percentile(update):
    return filtered(PercentilePrivacy(), {"weight": update.copy()})["weight"]
