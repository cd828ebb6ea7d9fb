#!/usr/bin/python3
"""Activation offloading: which activations are where at each moment, with a stand-in for the GPU's copies."""

import contextlib
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

sys.path.insert(0, str(suite.TREE / "worker" / "python"))


CHANGED = r"modified by an inplace operation: (\[.*?\]\]).* is at version (\d); expected version (\d) instead"


class Copies:
    """Every tensor is on the device; what is put away or fetched is written down."""

    def __init__(self):
        self.log = []

    def has(self, tensor):
        return tensor.dim() > 1

    def to_host(self, tensor):
        self.log.append("out")
        return tensor.clone()

    def to_device(self, hosted):
        self.log.append("in")
        return hosted.clone()

    def wait(self, on_device):
        return on_device


@contextlib.contextmanager
def offloaded(horizon):
    """Offloading around a forward pass."""
    import torch
    from shoal.smddp.smp.fsdp import _offloading

    offloading = _offloading.Offloading(horizon, Copies())
    with torch.autograd.graph.saved_tensors_hooks(offloading.pack, offloading.unpack):
        yield offloading
    offloading.end_forward()


class Layers:
    """A chain of layers, each of which keeps its input alone, and the offloading of their forward pass."""

    def __init__(self, count, horizon, width=3):
        import torch
        from shoal.smddp.smp.fsdp import _offloading

        class Square(torch.autograd.Function):
            @staticmethod
            def forward(context, tensor):
                context.save_for_backward(tensor)
                return tensor * tensor

            @staticmethod
            def backward(context, gradient):
                self.most = max(self.most, self.on_device())
                (tensor,) = context.saved_tensors
                self.most = max(self.most, self.on_device())
                return 2 * tensor * gradient

        self.most = 0
        self.copies = Copies()
        self.offloading = _offloading.Offloading(horizon, self.copies)
        torch.manual_seed(1)
        self.input = torch.rand(2, width, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(self.offloading.pack, self.offloading.unpack):
            tensor = self.input
            for _ in range(count):
                self.offloading.begin_group()
                tensor = Square.apply(tensor)
                self.most = max(self.most, self.on_device())
        self.offloading.end_forward()
        self.output = tensor

    def on_device(self):
        """How many layers have something on the device."""
        kept = [[reference() for reference in group] for group in self.offloading.groups]
        return sum(any(one is not None and one.on_device is not None for one in group) for group in kept)


class Offloading(unittest.TestCase):
    def check(self, count, horizon):
        import torch

        layers = Layers(count, horizon)
        self.assertEqual(layers.copies.log, ["out"] * max(0, count - horizon))
        layers.output.sum().backward()
        self.assertLessEqual(layers.most, horizon)
        self.assertEqual(layers.on_device(), 0)
        self.assertEqual(layers.copies.log.count("in"), max(0, count - horizon))
        expected = (2**count) * layers.input.detach().double() ** (2**count - 1)
        self.assertTrue(torch.allclose(layers.input.grad.double(), expected, rtol=1e-4), (layers.input.grad, expected))

    def test_no_more_layers_than_the_horizon_are_on_the_device(self):
        for horizon in (1, 2, 3):
            for count in (1, 2, 5):
                with self.subTest(horizon=horizon, count=count):
                    self.check(count, horizon)

    def test_the_layer_before_is_fetched_ahead(self):
        layers = Layers(4, 2)
        kept = [group[0]() for group in layers.offloading.groups]
        self.assertEqual([one.on_device is not None for one in kept], [False, False, True, True])
        layers.offloading.unpack(kept[3])
        layers.offloading.unpack(kept[2])
        self.assertEqual([one.on_device is not None for one in kept], [False, True, True, True])

    def test_a_second_backward_pass(self):
        layers = Layers(4, 1)
        layers.output.sum().backward(retain_graph=True)
        first = layers.input.grad.clone()
        layers.output.sum().backward()
        self.assertTrue((layers.input.grad == 2 * first).all())

    def test_a_tensor_that_is_kept_twice_is_put_away_once(self):
        import torch
        from shoal.smddp.smp.fsdp import _offloading

        copies = Copies()
        offloading = _offloading.Offloading(1, copies)
        tensor = torch.ones(2, 2)
        first, second = offloading.pack(tensor), offloading.pack(tensor)
        self.assertIs(first, second)
        tensor.add_(1)  # another value now
        self.assertIsNot(offloading.pack(tensor), first)

    def test_what_fsdp_has_taken_back_stays(self):
        """Its memory is gone until the backward pass, when the same tensor has it again."""
        import torch
        from shoal.smddp.smp.fsdp import _offloading

        copies = Copies()
        offloading = _offloading.Offloading(1, copies)
        tensor = torch.ones(2, 2)
        kept = offloading.pack(tensor)
        tensor.untyped_storage().resize_(0)
        offloading.begin_group()
        other = offloading.pack(torch.ones(3, 3))
        offloading.begin_group()
        self.assertEqual(copies.log, ["out"])  # the other
        tensor.untyped_storage().resize_(16)
        tensor.data.fill_(5)  # as a collective does, whose output is another tensor in the same memory
        self.assertTrue(torch.equal(offloading.unpack(other), torch.ones(3, 3)))
        self.assertTrue(torch.equal(offloading.unpack(kept), torch.full((2, 2), 5.0)))

    def test_parameters_and_what_is_elsewhere_stay(self):
        import torch
        from shoal.smddp.smp.fsdp import _offloading

        offloading = _offloading.Offloading(1, Copies())
        for tensor in (torch.nn.Parameter(torch.ones(2, 2)), torch.ones(2)):
            self.assertIs(offloading.unpack(offloading.pack(tensor)), tensor)

    def test_what_was_changed_in_place_is_an_error(self):
        """torch's own, wherever the tensor has been meanwhile: on the host, on the device, or left alone as what
        has one dimension is here, and a parameter."""
        import torch

        for count, horizon, shape in ((4, 1, (2, 3)), (1, 1, (2, 3)), (1, 1, (3,)), (0, 1, (2, 3))):
            said = []
            for offloads in (False, True):
                first = torch.nn.Parameter(torch.ones(shape)) if count == 0 else torch.ones(shape, requires_grad=True)
                with offloaded(horizon) if offloads else contextlib.nullcontext() as kept:
                    first = first if count == 0 else first * 1
                    output = first * first
                    for _ in range(count):
                        if kept:
                            kept.begin_group()
                        output = output.sin()
                with torch.no_grad():
                    first.view(-1)[:1].add_(1)
                with self.assertRaises(RuntimeError) as caught:
                    output.sum().backward()
                said.append(re.search(CHANGED, str(caught.exception)).groups())
            self.assertEqual(said[0], said[1])

    def test_the_memory_of_what_is_put_away_is_given_back(self):
        import torch
        from shoal.smddp.smp.fsdp import _offloading

        offloading = _offloading.Offloading(1, Copies())
        tensor = torch.ones(2, 2)
        kept = offloading.pack(tensor)
        offloading.begin_group()
        offloading.pack(torch.ones(3, 3))
        offloading.begin_group()
        self.assertIsNone(kept.on_device)
        self.assertNotEqual(kept.version._counter.untyped_storage().data_ptr(), tensor.untyped_storage().data_ptr())


if __name__ == "__main__":
    sys.exit(suite.main())
