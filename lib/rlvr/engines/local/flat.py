"""A flat vector of weights with its optimiser: the modules and the critic beside the policy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class FlatTrainer:
    """AdamW on a flat vector, with the gradient clipped to a global norm.

    Args: ``name``: for messages; ``weights`` [parameters], a copy is trained.
    """

    def __init__(self, name: str, weights: Tensor, lr: float, betas: tuple[float, float], grad_clip: float):
        self.name, self.grad_clip = name, grad_clip
        self.weights = weights.detach().clone().requires_grad_()
        self.optimizer = torch.optim.AdamW([self.weights], lr=lr, betas=betas, weight_decay=0.0, fused=True)

    def norm(self, gradient: Tensor) -> float:
        """The gradient's norm.

        Raises:
            FloatingPointError: it is not finite.
        """
        norm = float(torch.linalg.vector_norm(gradient))
        if not norm < float("inf"):  # NaN does not pass
            raise FloatingPointError(f"gradient norm of the {self.name} is {norm}")
        return norm

    def apply(self, gradient: Tensor, norm: float) -> None:
        self.weights.grad = gradient * (self.grad_clip / max(norm, self.grad_clip))
        self.optimizer.step()

    def snapshot(self) -> Tensor:
        return self.weights.detach().clone()

    def state(self) -> dict[str, Any]:
        return {"weights": self.snapshot(), "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            self.weights.copy_(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
