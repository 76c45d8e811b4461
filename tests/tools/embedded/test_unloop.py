"""What counts as going round, and that text is written as the network says without a cache."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs torch")


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("abcdefghijklmnopqrstuvwxyz", ""),
        # one token for ever: the first, eight more, and from then on it goes round
        ("xyaaaaaaaaaaaa", "aaa"),
        # a period of ten, once repeated, is a copy; what follows goes round
        ("abcdefghij" * 2, ""),
        ("abcdefghij" * 2 + "abc", "abc"),
        ("abcdefghij" * 2 + "xyz", ""),
        ("abc" * 5 + "ddd", "cabc"),
    ],
)
def test_what_goes_round_is_marked(text: str, marked: str) -> None:
    from tools.embedded.unloop import periods

    ids = np.array([[ord(c) for c in text]])
    found = periods(ids)[0]
    assert "".join(c for c, f in zip(text, found, strict=True) if f) == marked


def test_a_round_is_left_where_the_model_was_least_sure() -> None:
    from tools.embedded.unloop import exits

    rounds = np.array([[0, 0, 3, 3, 3, 3, 3, 0], [0, 1, 1, 0, 0, 0, 0, 0]])
    likely = np.array([[0.1, 0.1, 0.9, 0.8, 0.7, 0.6, 0.9, 0.1], [0.5, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1]])
    # the last round is cut off by the text's own exit, which is none of its tokens
    assert exits(rounds, likely).nonzero()[1].tolist() == [4, 1, 2]
    assert not exits(np.zeros((2, 8), int), likely).any()


def test_written_text_is_what_the_network_says_of_the_whole() -> None:
    from tools.embedded.muon import MATMUL
    from tools.embedded.network import Llama, Shape
    from tools.embedded.unloop import write

    torch.manual_seed(0)
    model = Llama(Shape(width=32, blocks=2, heads=4, kv_heads=2, feed_forward=64, vocab=50, context=64))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    prompts = torch.randint(0, 50, (3, 7))
    texts, likely = write(model, prompts, 20)
    assert torch.equal(texts[:, :7], prompts)
    assert torch.equal(likely[:, :7], torch.ones(3, 7))
    with torch.no_grad(), torch.autocast("cpu", MATMUL, enabled=torch.float32 != MATMUL):
        rows = model(texts[:, :-1])[:, 6:].float()
    torch.testing.assert_close(likely[:, 7:], rows.softmax(-1).max(-1).values, rtol=0.05, atol=0.01)
    best, said = rows.max(-1).values, rows.gather(-1, texts[:, 7:, None])[..., 0]
    # in bfloat16 two of the likeliest may be told apart by rounding alone
    assert (best - said).max() <= 0.02 * rows.abs().max()
