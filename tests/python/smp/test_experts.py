#!/usr/bin/python3
"""Mixtures of experts over expert parallel ranks, and what they are made of."""

import dataclasses
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

sys.path.insert(0, str(suite.TREE / "worker" / "python"))


SCRIPT = pathlib.Path(__file__).with_name("ranks_experts.py")


class Experts(suite.ForkedRanksCase, script=SCRIPT, ranks=8):
    imports = "torch._dynamo,shoal.smddp.smp"


class Configuration(unittest.TestCase):
    def make(self, **fields):
        from shoal.smddp.smp.moe_config import MoEConfig

        return MoEConfig(**fields)

    def refuse(self, kind, pattern, **fields):
        from shoal import errors

        with self.assertRaisesRegex(getattr(errors, kind), pattern):
            self.make(**fields)

    def test_defaults(self):
        config = self.make()
        self.assertEqual((config.smp_moe, config.random_seed), (True, 12345))
        self.assertEqual((config.moe_load_balancing, config.moe_all_to_all_dispatcher), ("sinkhorn", True))
        self.assertEqual((config.moe_aux_loss_coeff, config.moe_z_loss_coeff), (0.001, 0.001))

    def test_what_examples_give(self):
        config = self.make(smp_moe=1 > 0, moe_load_balancing="aux_loss", use_cpu_initialization=False)
        self.assertIs(config.smp_moe, True)
        self.make(moe_z_loss_coeff=0, moe_aux_loss_coeff=1, smp_moe=1)

    def test_what_is_refused(self):
        self.refuse("InvalidError", "random_seed is '1', but a int", random_seed="1")
        self.refuse("InvalidError", "random_seed is True", random_seed=True)
        self.refuse("InvalidError", "random_seed is -1", random_seed=-1)
        self.refuse("InvalidError", "smp_moe is 2, but a bool", smp_moe=2)
        self.refuse("InvalidError", "moe_load_balancing is 'even', but one of sinkhorn", moe_load_balancing="even")
        self.refuse("InvalidError", "moe_z_loss_coeff is -0.1", moe_z_loss_coeff=-0.1)
        self.refuse("InvalidError", "moe_aux_loss_coeff is nan", moe_aux_loss_coeff=float("nan"))
        self.refuse("InvalidError", "moe_aux_loss_coeff is inf", moe_aux_loss_coeff=float("inf"))
        self.refuse("UnsupportedError", "global_token_shuffle is not done", global_token_shuffle=True)
        with self.assertRaisesRegex(TypeError, "colour"):
            self.make(colour=1)

    def test_the_paper_has_the_same_fields(self):
        text = (suite.TREE / "doc" / "smddp-model-parallel.md").read_text().split("## Experts")[1]
        rows = re.findall(r"^\| `(\w+)` \| `?([\w.]+)`? \| [^|]* \|$", text, re.M)
        fields = dataclasses.asdict(self.make())
        self.assertEqual(rows, [(name, str(value).lower()) for name, value in fields.items()])


class OneProcess(unittest.TestCase):
    """Cases that need no other ranks."""

    def layer(self, top_k=2, experts=4, balancing="none", **more):
        import torch
        from shoal.smddp.smp import moe_config, moe_layer

        config = moe_config.MoEConfig(moe_load_balancing=balancing, **more)
        return moe_layer.MoELayer(6, lambda: torch.nn.Linear(6, 6), experts, top_k, config)

    def test_a_layer_is_the_weighted_sum_of_its_experts(self):
        import torch

        layer = self.layer()
        hidden = torch.randn(2, 5, 6)
        made = layer(hidden)
        logits = hidden @ layer.router.gate.weight.T
        chosen, numbers = logits.topk(2)
        weights = chosen.softmax(-1)
        for place in ((0, 0), (1, 4)):
            wanted = sum(
                weights[place][i] * layer.experts[numbers[place][i].item()](hidden[place])
                for i in range(2)
            )
            torch.testing.assert_close(made[place], wanted)

    def test_sinkhorn_balances(self):
        import torch
        from shoal.smddp.smp import moe_layer

        torch.manual_seed(1)
        logits = torch.randn(64, 4) + torch.tensor([3.0, 0, 0, 0])  # all want the first
        balanced = moe_layer.sinkhorn(logits)
        torch.testing.assert_close(balanced.sum(0), torch.full((4,), 0.25), rtol=1e-2, atol=0)
        torch.testing.assert_close(balanced.sum(1), torch.full((64,), 1 / 64), rtol=1e-1, atol=0)
        one = torch.bincount(logits.argmax(1), minlength=4)
        other = torch.bincount(balanced.argmax(1), minlength=4)
        self.assertLess(other.max(), one.max())
        self.assertEqual(moe_layer.sinkhorn(torch.empty(0, 4)).shape, (0, 4))
        self.assertTrue(moe_layer.sinkhorn(torch.randn(8, 4) * 1e4).isfinite().all())

    def test_balanced_gives_all_experts_as_much(self):
        import torch

        layer = self.layer(balancing="balanced")
        _, experts, _ = layer.router(torch.randn(8, 6))
        self.assertEqual(torch.bincount(experts.reshape(-1)).tolist(), [4] * 4)

    def test_losses_of_the_router(self):
        """Their gradients, beside those of the same losses written down."""
        import torch

        for balancing in ("aux_loss", "none"):
            layer = self.layer(top_k=1, balancing=balancing, moe_aux_loss_coeff=0.5, moe_z_loss_coeff=0.25)
            tokens = torch.randn(7, 6)
            weights, experts, _ = layer.router(tokens)
            (weights.sum() * 0).backward()
            logits = tokens @ layer.router.gate.weight.detach().requires_grad_().T
            weight = layer.router.gate.weight.detach().requires_grad_()
            logits = tokens @ weight.T
            loss = 0.25 * logits.logsumexp(-1).square().mean()
            if balancing == "aux_loss":
                share = torch.bincount(experts.reshape(-1), minlength=4) / 7
                loss = loss + 0.5 * 4 * (share * logits.softmax(-1).mean(0)).sum()
            loss.backward()
            torch.testing.assert_close(layer.router.gate.weight.grad, weight.grad)

    def test_without_training_there_are_no_losses(self):
        import torch

        layer = self.layer(balancing="aux_loss").eval()
        weights, _, _ = layer.router(torch.randn(7, 6))
        (weights.sum() * 0).backward()
        self.assertEqual(layer.router.gate.weight.grad.abs().max(), 0)

    def test_weights_come_from_seeds_alone(self):
        import torch

        before = torch.get_rng_state()
        first, second, other = self.layer(), self.layer(experts=8), self.layer(random_seed=5)
        self.assertTrue(torch.equal(before, torch.get_rng_state()))
        for number in range(4):
            same = torch.equal(first.experts[number].weight, second.experts[number].weight)
            self.assertTrue(same, number)
        self.assertFalse(torch.equal(first.experts[0].weight, other.experts[0].weight))
        self.assertFalse(torch.equal(first.experts[0].weight, first.experts[1].weight))

    def mixture(self, kind="MixtralSparseMoeBlock", **more):
        """Return a mixture as transformers' Mixtral has it; there, forward() computes one expert after the other."""
        import torch

        class Block(torch.nn.Module):
            def forward(self, hidden):
                logits = self.gate(hidden)
                weights, chosen = logits.softmax(-1).topk(self.top_k)
                weights = weights / weights.sum(-1, keepdim=True)
                made = torch.stack([expert(hidden) for expert in self.experts], -2)
                made = made.gather(-2, chosen[..., None].expand(*chosen.shape, 6))
                return (made * weights[..., None]).sum(-2), logits

        module = type(kind, (Block,), {})()
        module.gate = torch.nn.Linear(6, 4, bias=False)
        module.experts = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(4))
        module.top_k = 2
        for name, value in more.items():
            setattr(module, name, value)
        return torch.nn.ModuleDict({"mixture": module, "other": torch.nn.Linear(6, 6)})

    def test_a_models_mixtures_become_layers(self):
        import torch
        from shoal.smddp.smp import _mixtures, moe_config, moe_layer

        model = self.mixture().eval()
        gate, experts = model["mixture"].gate, list(model["mixture"].experts)
        _mixtures.transform(model, moe_config.MoEConfig(smp_moe=False), False)
        self.assertNotIsInstance(model["mixture"], moe_layer.MoELayer)
        _mixtures.transform(model, moe_config.MoEConfig(), False)
        mixture = model["mixture"]
        self.assertIsInstance(mixture, moe_layer.MoELayer)
        self.assertFalse(mixture.training)
        self.assertIs(mixture.router.gate, gate)
        self.assertTrue(all(a is b for a, b in zip(mixture.experts, experts)))
        made, logits = mixture(torch.ones(2, 3, 6))
        self.assertEqual((made.shape, logits.shape), ((2, 3, 6), (6, 4)))

    def test_a_mixture_of_one_expert_a_token(self):
        """Mixtral's weights add up to 1 then too."""
        import torch
        from shoal.smddp.smp import _mixtures, moe_config

        for top_k in (1, 3):
            model = self.mixture(top_k=top_k).eval()
            hidden = torch.randn(5, 6)
            wanted, _ = model["mixture"](hidden)
            _mixtures.transform(model, moe_config.MoEConfig(), False)
            torch.testing.assert_close(model["mixture"](hidden)[0], wanted)

    def test_models_without_known_mixtures(self):
        import torch
        from shoal import errors
        from shoal.smddp.smp import _mixtures, moe_config

        shared = {"shared_expert": torch.nn.Linear(6, 6), "norm_topk_prob": False}
        hooked = self.mixture()
        hooked["mixture"].register_forward_hook(lambda *_: None)
        for pattern, model, from_rank0 in (
            ("nothing in a Linear is a known mixture", torch.nn.Linear(2, 2), False),
            ("mixture is a Qwen2MoeSparseMoeBlock, .* not known", self.mixture("Qwen2MoeSparseMoeBlock"), False),
            ("mixture is a OlmoeSparseMoeBlock", self.mixture("OlmoeSparseMoeBlock", norm_topk_prob=False), False),
            ("mixture is a Qwen3MoeSparseMoeBlock", self.mixture("Qwen3MoeSparseMoeBlock"), False),
            ("mixture is a PhimoeSparseMoeBlock", self.mixture("PhimoeSparseMoeBlock"), False),
            ("mixture is a Mixtral.* it has shared_expert beside", self.mixture(**shared), False),
            ("it has bias beside", self.mixture(bias=torch.nn.Parameter(torch.ones(4))), False),
            ("jitter_noise 0.1, which is not done", self.mixture(jitter_noise=0.1), False),
            ("its top_k is None", self.mixture(top_k=None), False),
            ("experts a Linear", self.mixture(experts=torch.nn.Linear(6, 6)), False),
            ("hooks, which would be lost", hooked, False),
            ("4 experts and a gate .*bias=True", self.mixture(gate=torch.nn.Linear(6, 4)), False),
            ("4 experts and a gate .*=3", self.mixture(gate=torch.nn.Linear(6, 3, bias=False)), False),
            ("load_state_dict_from_rank0 is not done", self.mixture(), True),
        ):
            before = list(model.modules())
            with self.assertRaisesRegex(errors.UnsupportedError, pattern):
                _mixtures.transform(model, moe_config.MoEConfig(), from_rank0)
            self.assertEqual(list(model.modules()), before)

    def test_what_is_refused(self):
        import torch
        from shoal import errors

        for pattern, call in (
            ("top_k is 5, but 1 to 4", lambda: self.layer(top_k=5)),
            ("top_k is 0", lambda: self.layer(top_k=0)),
            ("does not divide 0 experts", lambda: self.layer(experts=0)),
            (r"the input is \[3, 5\], .* should be 6", lambda: self.layer()(torch.ones(3, 5))),
        ):
            with self.assertRaisesRegex(errors.InvalidError, pattern):
                call()


class Random(unittest.TestCase):
    def test_states_go_on_by_themselves(self):
        import torch
        from shoal.smddp.smp import _random

        tracker = _random.RngStateTracker()
        torch.manual_seed(9)
        wanted = torch.rand(2)
        torch.manual_seed(4)
        others = torch.rand(3)
        torch.manual_seed(9)
        tracker.add("name", 4)
        drawn = []
        with tracker.fork("name"):
            drawn.append(torch.rand(1))
        first = torch.rand(1)
        saved = tracker.get_states()
        for _ in range(2):
            with tracker.fork("name"):
                drawn.append(torch.rand(1))
        self.assertTrue(torch.equal(torch.cat(drawn), others))
        self.assertTrue(torch.equal(torch.cat([first, torch.rand(1)]), wanted))
        tracker.set_states(saved)
        with tracker.fork("name"):
            self.assertTrue(torch.equal(torch.rand(1), drawn[1]))

    def test_what_is_refused(self):
        from shoal import errors
        from shoal.smddp.smp import _random

        tracker = _random.RngStateTracker()
        tracker.add("name", 4)
        with self.assertRaisesRegex(errors.InvalidError, "'name' is there already"):
            tracker.add("name", 5)
        with self.assertRaisesRegex(errors.InvalidError, "no random state 'other'; there are: name"):
            with tracker.fork("other"):
                pass

    def test_before_cuda_is_set_up(self):
        """The seed that a script leaves for CUDA's generator stays: nothing else is left for it."""
        from unittest import mock

        import torch
        from shoal.smddp.smp import _random

        with mock.patch("torch.cuda.random._lazy_call") as lazy_call:
            tracker = _random.make_tracker(7, tp_rank=0, tp_size=2, ep_rank=0)
            with tracker.fork(), _random.seeded(3):
                torch.rand(1)
        lazy_call.assert_not_called()

    def test_a_gpu(self):
        """It takes part once CUDA is set up, from the state's seed; a generator of the CPU stands in for its own."""
        from unittest import mock

        import torch
        from shoal.smddp.smp import _random

        tracker = _random.RngStateTracker()
        tracker.add("name", 4)
        with tracker.fork("name"):
            pass
        gpu = torch.Generator().manual_seed(9)
        wanted = torch.rand(2, generator=torch.Generator().manual_seed(4))
        make = torch.Generator
        with mock.patch.multiple(
            torch.cuda,
            is_available=lambda: True,
            is_initialized=lambda: True,
            current_device=lambda: 0,
            get_rng_state=gpu.get_state,
            set_rng_state=gpu.set_state,
        ), mock.patch("torch.Generator", lambda device: make()):
            drawn = []
            for _ in range(2):
                with tracker.fork("name"):
                    drawn.append(torch.rand(1, generator=gpu))
        self.assertTrue(torch.equal(torch.cat(drawn), wanted))
        self.assertEqual(torch.rand(1, generator=gpu), torch.rand(1, generator=make().manual_seed(9)))
        with tracker.fork("name"):  # where there is no GPU its state is kept
            pass
        self.assertIsNotNone(tracker.get_states()["name"].gpu)

    def test_each_rank_has_its_own(self):
        import itertools

        import torch
        from shoal.smddp.smp import _random

        drawn = {}
        for tp, ep in itertools.product(range(2), range(3)):
            tracker = _random.make_tracker(7, tp_rank=tp, tp_size=2, ep_rank=ep)
            for name in (_random.MODEL_PARALLEL, _random.EXPERT_PARALLEL):
                with tracker.fork(name):
                    drawn[name, tp, ep] = torch.rand(1).item()
        self.assertEqual(len({drawn[_random.EXPERT_PARALLEL, tp, ep] for tp in range(2) for ep in range(3)}), 6)
        for tp in range(2):
            self.assertEqual(len({drawn[_random.MODEL_PARALLEL, tp, ep] for ep in range(3)}), 1)
        self.assertNotEqual(drawn[_random.MODEL_PARALLEL, 0, 0], drawn[_random.MODEL_PARALLEL, 1, 0])


if __name__ == "__main__":
    sys.exit(suite.main())
