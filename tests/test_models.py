"""The GPT, the equal layers, and the text they read."""

import math

import pytest
import torch
from torch import nn

from ppcourse.runtime.data import VOCAB, batches, corpus, decode, encode, text, text_loss
from ppcourse.runtime.models import Block, gpt, mlp

MAKERS = {
    "gpt": lambda seed: gpt(layers=2, width=16, heads=2, seed=seed),
    "mlp": lambda seed: mlp(3, 8, seed),
}


def equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_gpt_is_a_flat_list_of_layers_each_from_one_tensor_to_one() -> None:
    model = gpt(layers=3, width=16, heads=2, vocab=11, context=8)
    x = torch.randint(11, (2, 8))
    shapes = []
    for layer in model:
        x = layer(x)
        shapes.append(tuple(x.shape))
    assert shapes == [(2, 8, 16)] * 4 + [(2, 8, 11)]


def test_no_logit_sees_a_later_token() -> None:
    model = gpt(layers=2, width=16, heads=2, context=8)
    tokens = torch.randint(VOCAB, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % VOCAB
    difference = (model(tokens) - model(changed)).abs().sum(-1)[0]
    assert torch.all(difference[:5] == 0)
    assert torch.all(difference[5:] > 0)


def test_position_matters() -> None:
    model = gpt(layers=1, width=16, heads=2, context=8)
    same = torch.zeros(1, 8, dtype=torch.int64)
    out = model(same)[0]
    assert not torch.allclose(out[0], out[1])


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_weights_depend_on_the_seed_and_on_nothing_else(make) -> None:
    torch.manual_seed(1)
    one = make(0)
    torch.manual_seed(2)
    assert equal(one, make(0))
    assert not equal(one, make(1))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_making_a_model_leaves_the_callers_random_numbers_alone(make) -> None:
    before = torch.get_rng_state()
    make(5)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.thorough
def test_a_fresh_gpt_knows_nothing_and_a_few_steps_teach_it_something() -> None:
    model = gpt(layers=2, width=32, heads=2, context=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for inputs, targets in batches(8, 32, steps=30):
        loss = text_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(VOCAB), abs=0.1)
    assert losses[-1] < 3.5


def test_the_weights_that_add_to_the_stream_shrink_with_depth() -> None:
    shallow, deep = (gpt(layers=n, width=64)[1] for n in (1, 16))
    assert isinstance(shallow, Block)
    assert isinstance(deep, Block)
    assert (shallow.contract.weight.std() / deep.contract.weight.std()).item() == pytest.approx(4, rel=0.1)


def test_the_layers_of_an_mlp_are_equal_and_keep_the_shape() -> None:
    model = mlp(layers=5, width=8)
    assert [sum(p.numel() for p in layer.parameters()) for layer in model] == [72] * 5
    assert model(torch.ones(3, 8)).shape == (3, 8)


def test_bad_sizes_get_one_sentence() -> None:
    with pytest.raises(ValueError, match="10 is not one of 3"):
        gpt(width=10, heads=3)
    with pytest.raises(ValueError, match="at most 4 tokens at a time and was given 5"):
        gpt(layers=1, context=4)(torch.zeros(1, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match="context must be"):
        next(batches(2, 0, steps=1))


def test_the_text_is_real_english_of_some_size() -> None:
    words = text().split()
    assert len(words) > 50_000
    assert words.count("the") > 2_000
    assert "statement" in words


def test_tokens_are_bytes_and_decode_to_what_was_encoded() -> None:
    assert decode(encode("for é in x")) == "for é in x"
    assert decode(corpus()) == text()
    assert 0 <= corpus().min() <= corpus().max() < VOCAB


def test_a_batch_is_text_and_its_targets_are_the_next_tokens() -> None:
    ((inputs, targets),) = batches(4, 20, steps=1, seed=3)
    assert inputs.shape == targets.shape == (4, 20)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    whole = text().encode()
    assert all(bytes(row.tolist()) in whole for row in torch.cat([inputs, targets[:, -1:]], dim=1))


def test_batches_depend_on_the_seed_and_on_nothing_else() -> None:
    before = torch.get_rng_state()
    one, again, other = (list(batches(2, 8, steps=3, seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(one, again, strict=True))
    assert not torch.equal(one[0][0], other[0][0])
    assert not torch.equal(one[0][0], one[1][0])


def test_the_loss_is_the_mean_over_tokens() -> None:
    logits = torch.randn(2, 3, 5)
    targets = torch.randint(5, (2, 3))
    one_by_one = [-logits[i, j].log_softmax(-1)[targets[i, j]] for i in range(2) for j in range(3)]
    assert text_loss(logits, targets) == pytest.approx(float(torch.stack(one_by_one).mean()))
