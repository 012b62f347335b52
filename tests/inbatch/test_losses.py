"""The chunked loss compared with the full one."""

import pytest
import torch
import torch.nn.functional as F

from revela.inbatch import losses
from revela.inbatch.losses import next_token_loss


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("at_a_time", [1, 64, 10**6])
def test_equals_the_whole_loss(monkeypatch, at_a_time, frozen):
    monkeypatch.setattr(losses, "_LOGITS_AT_A_TIME", at_a_time)
    torch.manual_seed(0)
    head = torch.nn.Linear(6, 20, dtype=torch.float64)
    head.weight.requires_grad_(not frozen)
    targets = torch.randint(0, 20, (7,))
    found = []
    for loss_of in (next_token_loss, lambda h, head, t: F.cross_entropy(head(h), t)):
        hidden = torch.linspace(-1, 1, 42, dtype=torch.float64).view(7, 6).requires_grad_()
        head.zero_grad()
        loss = loss_of(hidden, head, targets)
        (3 * loss).backward()
        found.append((loss, hidden.grad, head.bias.grad.clone(), head.weight.grad))
    for ours, expected in zip(*found, strict=True):
        if expected is not None:
            torch.testing.assert_close(ours, expected)


def test_no_gradient_is_computed_without_grad_mode():
    head = torch.nn.Linear(6, 20)
    with torch.no_grad():
        loss = next_token_loss(torch.randn(7, 6), head, torch.zeros(7, dtype=torch.long))
    assert not loss.requires_grad


def test_a_loss_in_half_precision_is_summed_in_float32():
    torch.manual_seed(0)
    head, hidden = torch.nn.Linear(6, 20).bfloat16(), torch.randn(3000, 6).bfloat16()
    targets = torch.randint(0, 20, (3000,))
    expected = F.cross_entropy(head(hidden).float(), targets)
    torch.testing.assert_close(next_token_loss(hidden, head, targets), expected, rtol=1e-5, atol=0)
