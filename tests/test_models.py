"""Small models: shapes, weights from the seed alone, and what is refused. The others: test_models_papers.py."""

import pytest
import torch
from torch import nn

from fedsaddle.contracts import SettingError
from fedsaddle.maths import flat
from fedsaddle.models import MLP, MODELS, LeNet5, Linear, build, check_module
from fedsaddle.models.cnn import CNN

torch.set_num_threads(1)


SMALL = ("linear", "mlp", "lenet5")


@pytest.mark.parametrize("name", SMALL)
def test_a_model_builds_runs_under_vmap_and_passes_the_check(name):
    net = build(MODELS[name](), (1, 28, 28), 3, seed=5)
    check_module(net)
    x = torch.stack([flat.flatten(net), 0.5 * flat.flatten(net)])
    inputs = torch.randn(2, 4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    got = torch.func.vmap(lambda v, i: flat.call(net, v, i))(x, inputs)
    assert got.shape == (2, 4, 3)
    torch.testing.assert_close(got[1], flat.call(net, x[1], inputs[1]), atol=1e-5, rtol=1e-5)


def test_weights_come_from_the_seed_and_the_global_generator_is_left_alone():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = flat.flatten(build(MLP((7,)), (5,), 1, seed=3))
    torch.manual_seed(2)
    again = flat.flatten(build(MLP((7,)), (5,), 1, seed=3))
    other = flat.flatten(build(MLP((7,)), (5,), 1, seed=4))
    torch.manual_seed(1)
    build(LeNet5(), (1, 28, 28), 1, seed=9)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_parameter_counts_of_the_papers():
    count = {name: sum(p.numel() for p in MODELS[name]().build((1, 28, 28), 10).parameters()) for name in SMALL}
    assert count["linear"] == 784 * 10 + 10
    assert count["mlp"] == (784 * 200 + 200) + (200 * 200 + 200) + (200 * 10 + 10)
    convolutions = (6 * 25 + 6) + (16 * 6 * 25 + 16)
    assert count["lenet5"] == convolutions + (256 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10)


def test_linear_is_one_affine_map_and_mlp_has_relu_between():
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    net = build(Linear(), (4,), 2, seed=0)
    weight, bias = net.parameters()
    torch.testing.assert_close(net(x), x @ weight.T + bias)
    net = build(MLP((3, 5)), (4,), 2, seed=0)
    w1, b1, w2, b2, w3, b3 = net.parameters()
    hidden = ((x @ w1.T + b1).clamp(min=0) @ w2.T + b2).clamp(min=0)
    torch.testing.assert_close(net(x), hidden @ w3.T + b3)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 16, 16), (2, 17, 40)])
def test_lenet_takes_its_flat_size_from_the_image(shape):
    assert build(LeNet5(), shape, 2, seed=0)(torch.zeros(5, *shape)).shape == (5, 2)


def test_lenet_may_end_in_a_relu_as_the_authors_code_does():
    images = torch.randn(20, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    plain, cut = (build(LeNet5(relu_outputs=on), (1, 28, 28), 10, seed=3)(images) for on in (False, True))
    assert bool((plain < 0).any())
    torch.testing.assert_close(cut, plain.clamp(min=0))


@pytest.mark.parametrize(("model", "shape", "layers"), [
    (LeNet5(), (1, 28, 28), lambda: [nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5), nn.Linear(256, 120), nn.Linear(120, 84),
                                     nn.Linear(84, 10)]),
    (CNN(), (3, 32, 32), lambda: [nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3), nn.Conv2d(64, 64, 3), nn.Linear(1024, 64),
                                  nn.Linear(64, 10)]),
], ids=["lenet5", "cnn"])
def test_the_first_weights_are_those_of_torchs_seed(model, shape, layers):
    """So that code which sets that seed and makes its layers in this order starts from the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1234)
        expected = torch.cat([p.detach().flatten() for layer in layers() for p in layer.parameters()])
    assert torch.equal(flat.flatten(build(model, shape, 10, seed=1234)), expected)


def test_images_lenet_cannot_take_are_refused():
    with pytest.raises(SettingError, match=r"8x8 are too small.*at least 16x16"):
        LeNet5().build((1, 8, 8), 2)
    with pytest.raises(SettingError, match=r"\(784,\).*channels, height, width"):
        LeNet5().build((784,), 2)
    with pytest.raises(SettingError, match="hidden"):
        MLP((10, 0)).build((4,), 1)


@pytest.mark.parametrize(("layer", "words"), [
    (nn.BatchNorm1d(3), "1 .BatchNorm1d.*track_running_stats=False"),
    (nn.BatchNorm2d(3), "GroupNorm"),
    (nn.InstanceNorm2d(3, track_running_stats=True), "GroupNorm"),
    (nn.Dropout(0.2), r"p=0\.2.*set p=0"),
    (nn.Dropout2d(0.1), "set p=0"),
    (nn.AlphaDropout(0.1), "set p=0"),
    (nn.LSTM(3, 3, num_layers=2, dropout=0.3), "set p=0"),
    (nn.MultiheadAttention(4, 2, dropout=0.3), "set p=0"),
    (nn.RReLU(), "LeakyReLU"),
])
def test_layers_that_clients_cannot_share_are_refused(layer, words):
    with pytest.raises(SettingError, match=words):
        check_module(nn.Sequential(nn.Linear(3, 3), layer))
    with pytest.raises(SettingError, match="the module itself"):
        check_module(layer)


def test_own_modules_with_running_buffers_are_refused_and_constant_buffers_are_not():
    own = nn.Linear(2, 2)
    own.register_buffer("scale", torch.ones(2))
    check_module(own)
    own.register_buffer("running_scale", torch.ones(2))
    with pytest.raises(SettingError, match="running_scale"):
        check_module(own)


def test_harmless_layers_pass():
    check_module(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.GroupNorm(1, 3), nn.Dropout(0.0),
                               nn.LSTM(3, 3), nn.LayerNorm(3)))
