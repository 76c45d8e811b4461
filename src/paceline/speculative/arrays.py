"""The arrays that core computes with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32] | NDArray[np.float64]  # [n_vocab]
Probabilities = NDArray[np.float64]  # [n_vocab], or one a kept token
Mask = NDArray[np.bool_]  # [n_vocab]
