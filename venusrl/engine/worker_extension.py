"""The engine's side of a weight push; vLLM mixes this class into its worker.

Loaded by name inside the worker process, and relying on interfaces that vLLM does not promise:
the version is pinned, and every push is followed by a comparison of logprobs (probe.py).
"""

from typing import Any


class WeightPushExtension:
    """Adds one remote call to the worker."""

    # The worker's own attribute.
    model_runner: Any

    def load_venus_weights(self, path: str) -> int:
        """Replace all weights in place by those in a safetensors file; return how many there were.

        ``model.load_weights`` would not do: on CPU the linear layers run on packed copies made at
        load time, which only ``reload_weights`` makes anew.
        """
        from safetensors.torch import load_file

        tensors = load_file(path)
        self.model_runner.reload_weights(
            weights_iterator=iter(tensors.items()), is_checkpoint_format=True
        )
        model = self.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        if getattr(model.config, "tie_word_embeddings", False) and head is not None:
            # A tied head shares the embedding's storage but has a packed copy of its own, which
            # reload_weights (vLLM 0.32) leaves as it was: logprobs off by whole units.
            head.quant_method.process_weights_after_loading(head)
        return len(tensors)
