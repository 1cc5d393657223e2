"""What a model is given while a learner's code runs: rows, and forwards that wait for their backward."""

from torch import Tensor, nn


class Seen:
    """What a model was given: the most rows at once, how often, and the most forwards whose backward was to come."""

    def __init__(self, model: nn.Module) -> None:
        self.rows = self.forwards = self.most_open = self._open = 0
        model.register_forward_hook(self._forward)

    def _forward(self, _: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        self.rows = max(self.rows, len(given[0]))
        self.forwards += 1
        if output.requires_grad:
            self._open += 1
            self.most_open = max(self.most_open, self._open)
            output.register_hook(self._backward)  # type: ignore[no-untyped-call]

    def _backward(self, _: Tensor) -> None:
        self._open -= 1

    def too_much(self, rows: int) -> str | None:
        """More than one part of so many rows, at once or still waiting for its backward; the end of a sentence."""
        if self.rows > rows:
            return f"the model is given {self.rows} rows at once; a part has {rows}."
        if self.most_open > 1:
            return (
                f"a backward comes only after {self.most_open} forwards, so that the activations of {self.most_open}"
                " parts are kept at once; run each part's backward right after its forward."
            )
        return None
