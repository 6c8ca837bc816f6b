"""Two clients in NVFlare's simulator: start.py NOISE, in units of what is promised."""

import sys

import numpy as np
from nvflare.app_common.np.recipes import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

if __name__ == "__main__":
    recipe = NumpyFedAvgRecipe(
        model=np.zeros(6),
        min_clients=2,
        num_rounds=2,
        train_script="client.py",
        train_args=sys.argv[1],
    )
    recipe.execute(SimEnv(num_clients=2, workspace_root="workspace"))
