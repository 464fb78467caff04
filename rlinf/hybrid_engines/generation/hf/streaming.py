"""An engine that shows each token of a response as soon as it is drawn."""

from __future__ import annotations

from collections.abc import Callable

from rlinf.hybrid_engines.generation.hf.engine import HFEngine
from rlinf.hybrid_engines.generation.requests import GenerationRequest, GenerationResult, require


class StreamingEngine(HFEngine):
    """An `HFEngine` for one response at a time, whose reader does not wait for the end of it."""

    def stream(
        self,
        request: GenerationRequest,
        on_token: Callable[[int], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> GenerationResult:
        """Serve one request.

        Args:
            request: It asks for one response.
            on_token: Called with each new token, the one that ends the response included.
            stop: Asked before each token; true ends the response there.

        Returns:
            The response; with the reason `abort` if it was stopped.

        Raises:
            ValueError: The engine has other work, or more than one response is asked for.
        """
        require(not self.unfinished, "stream: the engine has other work; abort() it first")
        require(request.n == 1, f"stream: n is {request.n}, only one response can be shown")
        self.submit([request])
        self.on_token = lambda name, index, token, logprob: on_token(token)
        try:
            results: list[GenerationResult] = []
            while not results:
                results = self.abort() if stop() else self.step()
            return results[0]
        finally:
            self.on_token = None
