"""Our convolutions of many clients against the library's, on a GPU; both in full float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedsaddle.engine.programs import compiling, convolutions, segments
from fedsaddle.engine.programs.tracing import trace

pytestmark = [pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
              pytest.mark.skipif(not convolutions.available(), reason="the kernels need triton")]
CLIENTS, ROWS = 3, 5
NETS = {
    "plain": (nn.Sequential(nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 70, 5)), (2, 12, 11)),
    "strides": (nn.Sequential(nn.Conv2d(3, 17, 3, 2, 1, bias=False), nn.Tanh(), nn.Conv2d(17, 33, 4, 3)), (3, 16, 17)),
    "transposed": (nn.Sequential(nn.ConvTranspose2d(3, 20, 4, 2, 1), nn.Tanh(), nn.ConvTranspose2d(20, 1, 5, 3, 2, 1),
                                 nn.Tanh(), nn.Conv2d(1, 3, 5)), (3, 4, 5)),
}


@pytest.fixture(autouse=True)
def full_precision(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def gradients(net, shape):
    """Of a loss by weights and inputs, for every client; and what it is called with."""
    torch.manual_seed(0)
    names = [name for name, _ in net.named_parameters()]
    weights = [0.3 * torch.randn(CLIENTS, *part.shape, device="cuda") for part in net.parameters()]
    inputs = torch.randn(CLIENTS, ROWS, *shape, device="cuda")

    def of_one(weights, inputs):
        return functional_call(net, dict(zip(names, weights, strict=True)), (inputs,)).square().sum()

    def function(inputs, *weights):
        by_weights, by_inputs = vmap(grad(of_one, argnums=(0, 1)))(weights, inputs)
        return [*by_weights, by_inputs]

    return function, [inputs, *weights]


def counted(module, word):
    return sum(word in str(node.target) for node in module.graph.nodes)


@pytest.fixture
def all_ours(monkeypatch):
    """Our kernels wherever they can be used, faster or not."""
    for name in ("correlates_faster", "spreads_faster"):
        monkeypatch.setattr(convolutions, name, lambda form: True)


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_the_librarys(name, all_ours):
    module, values, expected = traced(name)
    found = segments.op_by_op(module, values)[1]
    assert counted(module, "aten.convolution") == 0 and counted(module, "fedsaddle") > 0
    close(found, expected)


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_the_librarys_where_each_does_what_it_is_good_at(name):
    module, values, expected = traced(name)
    found = segments.op_by_op(module, values)[1]
    layers = sum(isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) for layer in NETS[name][0])
    assert counted(module, "fedsaddle.weighed") == layers
    assert counted(module, "aten.convolution") + counted(module, "fedsaddle") == 3 * layers
    close(found, expected)


@pytest.mark.parametrize("name", NETS)
def test_compiled_works_have_ours_for_large_kernels_only(name):
    module, values, expected = traced(name, compiling.decompositions())
    found = compiling.compiled(module, values)[1]
    kernels = [layer.kernel_size[0] for layer in NETS[name][0] if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d)]
    assert counted(module, "fedsaddle.weighed") == sum(side > compiling.SMALL for side in kernels)
    close(found, expected)


def traced(name, decompositions=None):
    function, values = gradients(*NETS[name])
    module = trace(function, values, decompositions)
    assert counted(module, "aten.convolution") > 0
    return module, values, function(*(value.double() for value in values))


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one.double(), other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


def test_what_the_kernels_do_not_know_is_left_to_the_library():
    function, values = gradients(nn.Conv2d(2, 3, 3, dilation=2), (2, 9, 9))
    module = trace(function, values)
    before = counted(module, "aten.convolution")
    convolutions.write_in_own_convolutions(module)
    assert counted(module, "aten.convolution") == before and counted(module, "fedsaddle") == 0
