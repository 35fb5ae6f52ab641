"""Settings of all tests: one thread, since the tensors are small and the cores few."""

import torch

torch.set_num_threads(1)
