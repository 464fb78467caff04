"""Log-probabilities in chunks have the values and gradients of those from all logits at once."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlinf.models.causal_lm.logprobs import token_logprobs

D = torch.float64


def inputs(tokens=11, width=5, vocabulary=17, bias=True, dtype=D):
    g = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=dtype).requires_grad_()

    targets = torch.randint(0, vocabulary, (tokens,), generator=g)
    hidden, weight = draw(tokens, width), draw(vocabulary, width)
    return hidden, weight, draw(vocabulary) if bias else None, targets


def naive(hidden, weight, bias, targets, temperature):
    logits = torch.nn.functional.linear(hidden, weight, bias) / temperature
    logp = logits.log_softmax(-1)
    chosen = logp.gather(1, targets[:, None]).squeeze(1)
    return chosen, -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("chunk", [1, 4, 11, 100, None])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_all_logits(chunk, temperature, bias):
    hidden, weight, b, targets = inputs(bias=bias)
    upstream = torch.linspace(-1, 2, len(targets), dtype=D)
    results = []
    for chunked in (True, False):
        if chunked:
            out = token_logprobs(
                hidden,
                weight,
                targets,
                bias=b,
                temperature=temperature,
                compute_entropy=True,
                chunk_tokens=chunk,
            )
        else:
            out = naive(hidden, weight, b, targets, temperature)
        loss = (upstream * out[0]).sum() + (upstream.flip(0) * out[1]).sum()
        learned = [t for t in (hidden, weight, b) if t is not None]
        results.append((*out, *torch.autograd.grad(loss, learned)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_the_gradient_is_that_of_small_differences():
    hidden, weight, bias, targets = inputs(tokens=4, vocabulary=6)

    def both(hidden, weight, bias):
        return token_logprobs(
            hidden,
            weight,
            targets,
            bias=bias,
            temperature=0.7,
            compute_entropy=True,
            chunk_tokens=3,
        )

    assert torch.autograd.gradcheck(both, (hidden, weight, bias))


@pytest.mark.parametrize("only", [0, 1])
def test_one_of_both_results_may_be_unused(only):
    hidden, weight, bias, targets = inputs()
    out = token_logprobs(hidden, weight, targets, bias=bias, compute_entropy=True, chunk_tokens=4)
    expected = naive(hidden, weight, bias, targets, 1.0)
    one = torch.autograd.grad(out[only].square().sum(), hidden)[0]
    torch.testing.assert_close(one, torch.autograd.grad(expected[only].square().sum(), hidden)[0])


def test_what_needs_no_gradient_gets_none():
    hidden, weight, _, targets = inputs(bias=False)
    logprobs, entropy = token_logprobs(hidden, weight.detach(), targets)
    assert entropy is None
    logprobs.sum().backward()
    assert hidden.grad is not None and weight.grad is None


def test_sums_are_in_single_precision_under_autocast():
    hidden, weight, _, targets = inputs(bias=False, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        logprobs, _ = token_logprobs(hidden, weight, targets, chunk_tokens=4)
    assert logprobs.dtype is torch.float32
    logprobs.sum().backward()
    exact = naive(hidden, weight, None, targets, 1.0)[0]
    assert 1e-6 < (logprobs - exact).abs().max() < 0.1
    assert weight.grad.dtype is torch.float32


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that operations have made and that are still there."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor.untyped_storage())
        return out

    def count(self, storage):
        if storage._cdata in self.known:
            return
        key, size = storage._cdata, storage.nbytes()
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)

        def gone():
            self.known.discard(key)
            self.now -= size

        weakref.finalize(storage, gone)


@pytest.mark.parametrize("entropy", [False, True])
def test_the_logits_of_all_tokens_never_exist_at_once(entropy):
    tokens, vocabulary, chunk = 512, 1024, 16
    all_logits = tokens * vocabulary * 4

    def peak(compute):
        hidden, weight, _, targets = inputs(tokens, 8, vocabulary, False, torch.float32)
        with LiveBytes() as live:
            compute(hidden, weight, targets).sum().backward()
        return live.peak

    def chunked(hidden, weight, targets):
        logprobs, h = token_logprobs(
            hidden, weight, targets, compute_entropy=entropy, chunk_tokens=chunk
        )
        return logprobs + h if entropy else logprobs

    def at_once(hidden, weight, targets):
        logprobs, h = naive(hidden, weight, None, targets, 1.0)
        return logprobs + h if entropy else logprobs

    assert peak(at_once) > 2 * all_logits, "the measure must see what it is to exclude"
    # A few chunks of logits, the gradient of the weight, and what is as long as the tokens.
    assert peak(chunked) < 6 * chunk * vocabulary * 4 + 3 * vocabulary * 8 * 4 + 10 * tokens * 8 * 4
    assert peak(chunked) < all_logits / 2
