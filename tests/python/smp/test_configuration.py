#!/usr/bin/python3
"""torch.sagemaker's configuration and its grid of ranks: plain functions."""

import importlib
import itertools
import json
import pathlib
import re
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

sys.path.insert(0, str(suite.TREE / "worker" / "python"))
PAPER = suite.TREE / "doc" / "smddp-model-parallel.md"


def module(name):
    """Imported late: where there is no torch, the tests are skipped."""
    return importlib.import_module(f"shoal.smddp.smp.{name}")


def errors():
    return importlib.import_module("shoal.errors")


class Configuration(unittest.TestCase):
    def read(self, given=None, environment=None, overrides=None):
        return module("_configuration").read(given, environment or {}, overrides)

    def refuse(self, kind, pattern, *arguments):
        with self.assertRaisesRegex(getattr(errors(), kind), pattern):
            self.read(*arguments)

    def file(self, text):
        folder = tempfile.TemporaryDirectory(prefix="shoal-smp-")
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "smp.json"
        path.write_text(text)
        return path

    def test_without_anything_all_are_defaults(self):
        configuration = self.read()
        for key in module("_configuration").KEYS:
            self.assertEqual(getattr(configuration, key.name), key.default)

    def test_from_a_dict(self):
        configuration = self.read({"hybrid_shard_degree": 4, "sm_activation_offloading": 0, "random_seed": None})
        self.assertEqual(configuration.hybrid_shard_degree, 4)
        self.assertIs(configuration.sm_activation_offloading, False)
        self.assertEqual(configuration.random_seed, 12345)

    def test_from_a_file(self):
        path = self.file('{"tensor_parallel_degree": 2, "random_seed": 7}')
        for given in (path, str(path)):
            configuration = self.read(given)
            self.assertEqual((configuration.tensor_parallel_degree, configuration.random_seed), (2, 7))

    def test_bad_files(self):
        with self.assertRaisesRegex(FileNotFoundError, "/nowhere/smp.json"):
            self.read("/nowhere/smp.json")
        for text, pattern in (
            ("{", "smp.json is not JSON: .*line 1"),
            ("[1]", "smp.json is not a JSON object"),
            ('{"random_seed": 1, "random_seed": 1}', "smp.json: random_seed is there twice"),
            ('{"random_seed": -1}', "smp.json: random_seed is -1, and 0 is the least"),
        ):
            self.refuse("InvalidError", pattern, self.file(text))

    def test_what_sagemaker_sets_goes_before_the_script(self):
        parameters = {"hybrid_shard_degree": 8}
        given = {"hybrid_shard_degree": 2, "tensor_parallel_degree": 2}
        for environment in (
            {"SM_HP_MP_PARAMETERS": json.dumps(parameters)},
            {"SM_HPS": json.dumps({"epochs": 3, "mp_parameters": parameters})},
            {"SM_HPS": json.dumps({"mp_parameters": json.dumps(parameters)})},
            {
                "SM_HP_MP_PARAMETERS": json.dumps(parameters),
                "SM_HPS": json.dumps({"mp_parameters": parameters}),
            },
        ):
            importlib.import_module("shoal.smddp._log").warn.cache_clear()
            with self.assertLogs("shoal.smddp", "WARNING") as log:
                configuration = self.read(given, environment)
            self.assertEqual(configuration.hybrid_shard_degree, 8)
            self.assertEqual(configuration.tensor_parallel_degree, 2)
            self.assertEqual(len(log.output), 1)
            self.assertRegex(log.output[0], "hybrid_shard_degree to 8, in place of 2")

    def test_an_environment_without_model_parallelism(self):
        environment = {"SM_HPS": '{"epochs": 3}', "SM_HP_MP_PARAMETERS": ""}
        self.assertEqual(self.read({"random_seed": 3}, environment).random_seed, 3)

    def test_bad_environments(self):
        for name, value, pattern in (
            ("SM_HPS", "x", "SM_HPS is not JSON"),
            ("SM_HPS", '{"mp_parameters": 3}', "SM_HPS, mp_parameters: 3 is not an object"),
            ("SM_HPS", '{"mp_parameters": "3"}', "SM_HPS, mp_parameters is not a JSON object"),
            ("SM_HP_MP_PARAMETERS", '{"tensor_parallel_degree": "2"}', "^SM_HP_MP_PARAMETERS: .*'2', but an integer"),
        ):
            self.refuse("InvalidError", pattern, None, {name: value})

    def test_two_that_contradict_each_other(self):
        environment = {
            "SM_HP_MP_PARAMETERS": '{"random_seed": 1}',
            "SM_HPS": '{"mp_parameters": {"random_seed": 2}}',
        }
        pattern = "SM_HP_MP_PARAMETERS and SM_HPS, mp_parameters contradict .* random_seed is 1 .* and 2 in"
        self.refuse("InvalidError", pattern, None, environment)
        environment["SM_HPS"] = '{"mp_parameters": {"random_seed": 1, "fp8": false}}'
        self.refuse("InvalidError", "fp8 is not there in the first and False", None, environment)

    def test_what_the_script_has_set_in_state_goes_before_all(self):
        environment = {"SM_HP_MP_PARAMETERS": '{"tensor_parallel_degree": 2}'}
        with self.assertLogs("shoal.smddp", "WARNING"):
            configuration = self.read(None, environment, {"tensor_parallel_degree": 1})
        self.assertEqual(configuration.tensor_parallel_degree, 1)
        self.refuse("InvalidError", "torch.sagemaker.state: .* is 0, and 1", None, {}, {"tensor_parallel_degree": 0})

    def test_values_of_the_wrong_kind(self):
        for name, value in itertools.product(
            ("hybrid_shard_degree", "activation_loading_horizon", "random_seed"), ("2", 2.0, True, [])
        ):
            self.refuse("InvalidError", rf"init\(\): {name} is .*, but an integer is wanted", {name: value})
        for value in (2, "true", 1.0):
            pattern = "sm_activation_offloading is .*, but true or false is wanted"
            self.refuse("InvalidError", pattern, {"sm_activation_offloading": value})
        self.refuse("InvalidError", "configuration is a list", [])

    def test_values_out_of_range(self):
        for name, value, least in (
            ("hybrid_shard_degree", -1, 0),
            ("tensor_parallel_degree", 0, 1),
            ("expert_parallel_degree", 0, 1),
            ("activation_loading_horizon", 0, 1),
        ):
            self.refuse("InvalidError", f"{name} is {value}, and {least} is the least", {name: value})
        self.refuse("InvalidError", "random_seed is .* is the most", {"random_seed": 2**63})

    def test_unknown_keys(self):
        self.refuse("InvalidError", "'hybrid_shard_degre'; did you mean hybrid_shard_degree", {"hybrid_shard_degre": 2})
        self.refuse("InvalidError", "no key 'colour'; the keys are hybrid_shard_degree,", {"colour": 2})
        self.refuse("InvalidError", "no key 3", {3: 3})

    def test_keys_of_version_1(self):
        for name in ("partitions", "microbatches", "ddp", "sharded_data_parallel_degree"):
            self.refuse("UnsupportedError", f"{name} is a key of SMP v1", {name: 1})

    def test_what_is_not_done(self):
        self.refuse("UnsupportedError", "context_parallel_degree is 2, .* not done", {"context_parallel_degree": 2})
        self.refuse("UnsupportedError", "fp8 is True, .* not done", {"fp8": True})
        self.assertIs(self.read({"fp8": False, "context_parallel_degree": 1}).fp8, False)

    def test_what_changes_nothing_is_named_once(self):
        """Where nothing has been set up for logging, by rank 0 alone."""
        given = {"allow_empty_shards": True, "fsdp_cache_flush_warnings": True}
        program = "from shoal.smddp.smp import _configuration as c, moe_config as m\n"
        program += f"for _ in range(2):\n    c.read({given}, {{}})\n    m.MoEConfig(moe_all_to_all_dispatcher=False)"
        for rank in ("0", "1"):
            said = suite.run([sys.executable, "-c", program], RANK=rank).stdout
            wanted = [f"torch.sagemaker.init(): {name} changes nothing here: " for name in given]
            wanted += ["MoEConfig: moe_all_to_all_dispatcher: "]
            lines = said.splitlines()
            self.assertEqual(len(lines), 0 if rank == "1" else 3, said)
            self.assertTrue(all(line.startswith(words) for line, words in zip(lines, wanted)), said)

    def test_the_paper_has_the_same_keys(self):
        rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| (\w+) \| ([^|]*) \|$", PAPER.read_text(), re.M)
        keys = module("_configuration").KEYS
        self.assertEqual([row[0] for row in rows], [key.name for key in keys])
        for (_, values, default, here), key in zip(rows, keys):
            self.assertEqual(json.loads(default), key.default, key.name)
            self.assertEqual("not done" in here, key.only is not None, key.name)
            self.assertEqual("changes nothing" in here, bool(key.idle), key.name)
            if key.kind is int and not key.only:
                self.assertRegex(values, rf"\b{key.least}\b", key.name)


class Ranker(unittest.TestCase):
    def ranker(self, size, **sizes):
        return module("_ranker").Ranker(size, **sizes)

    def refuse(self, pattern, call, *arguments, **named):
        with self.assertRaisesRegex(errors().InvalidError, pattern):
            call(*arguments, **named)

    def test_two_by_two_by_two(self):
        ranker = self.ranker(8, shard=2, tp=2, ep=2)
        self.assertEqual(ranker.shape, (1, 2, 2, 2))
        self.assertEqual(ranker.get_tp_groups(), [[0, 1], [2, 3], [4, 5], [6, 7]])
        self.assertEqual(ranker.get_shard_groups(), [[0, 2], [1, 3], [4, 6], [5, 7]])
        self.assertEqual(ranker.get_ep_groups(), [[0, 4], [1, 5], [2, 6], [3, 7]])
        self.assertEqual(ranker.get_rep_groups(), [[rank] for rank in range(8)])
        self.assertEqual(ranker.groups("rep", "ep", "shard"), [[0, 2, 4, 6], [1, 3, 5, 7]])
        self.assertEqual(ranker.coordinates(6), {"rep": 0, "ep": 1, "shard": 1, "tp": 0})

    def test_replicas(self):
        ranker = self.ranker(8, shard=2)
        self.assertEqual(ranker.get_rep_groups(), [[0, 2, 4, 6], [1, 3, 5, 7]])
        self.assertEqual([ranker.get_rep_rank(rank) for rank in range(8)], [0, 0, 1, 1, 2, 2, 3, 3])
        self.assertEqual([ranker.get_shard_rank(rank) for rank in range(8)], [0, 1] * 4)

    def test_every_group_of_every_grid_parts_the_ranks(self):
        dimensions = module("_ranker").DIMENSIONS
        subsets = [s for n in range(5) for s in itertools.combinations(dimensions, n)]
        for size in (1, 2, 6, 8, 12):
            degrees = [n for n in range(1, size + 1) if size % n == 0]
            for shard, tp, ep in itertools.product(degrees, repeat=3):
                if size % (shard * tp * ep):
                    continue
                ranker = self.ranker(size, shard=shard, tp=tp, ep=ep)
                for varying in subsets:
                    groups = ranker.groups(*varying)
                    self.assertEqual(sorted(itertools.chain(*groups)), list(range(size)))
                    self.assertEqual(len({len(group) for group in groups}), 1)
                    for group in groups:
                        ranker.check_members(group, *varying)
                        for dimension in set(dimensions) - set(varying):
                            self.assertEqual(len({ranker.coordinates(r)[dimension] for r in group}), 1)

    def test_data_parallel_ranks_are_numbered_as_scripts_do(self):
        ranker = self.ranker(16, shard=2, tp=4)
        for group in ranker.groups("rep", "ep", "shard"):
            self.assertEqual([rank // 4 for rank in group], [0, 1, 2, 3])

    def test_degrees_that_do_not_divide(self):
        self.refuse("tensor_parallel_degree 3 does not divide the world size 8", self.ranker, 8, tp=3)
        self.refuse("hybrid_shard_degree 16 is more than the world size 8", self.ranker, 8, shard=16)
        pattern = (
            "hybrid_shard_degree 4 x tensor_parallel_degree 2 x expert_parallel_degree 2 = 16 is more than "
            "the world size 8"
        )
        self.refuse(pattern, self.ranker, 8, shard=4, tp=2, ep=2)
        pattern = "hybrid_shard_degree 4 x tensor_parallel_degree 6 = 24 is more than the world size 12"
        self.refuse(pattern, self.ranker, 12, shard=4, tp=6)
        pattern = "hybrid_shard_degree 4 x expert_parallel_degree 2 = 8 does not divide the world size 12"
        self.refuse(pattern, self.ranker, 12, shard=4, ep=2)

    def test_groups_that_overlap_wrongly(self):
        ranker = self.ranker(8, shard=2, tp=2, ep=2)
        pattern = r"FSDP's group has ranks 0 and 1, which differ in tp \(0 and 1\); its ranks may differ in shard only"
        self.refuse(pattern, ranker.check_members, [0, 1], "shard", what="FSDP's group")
        pattern = r"the group has ranks 0 and 4, which differ in ep .* in rep and shard only"
        self.refuse(pattern, ranker.check_members, [0, 2, 4], "rep", "shard")
        self.refuse(r"the group lacks rank 2: ranks \[0, 2\]", ranker.check_members, [0], "shard")
        self.refuse("rank 8 is not one of the 8 ranks", ranker.check_members, [6, 8], "shard")

    def test_ranks_that_are_not_there(self):
        for rank in (-1, 8):
            self.refuse(f"rank {rank} is not one of the 8 ranks", self.ranker(8).get_tp_rank, rank)

    def test_what_a_degree_of_zero_and_one_mean(self):
        ranks, settings = module("_ranker"), module("_configuration")
        for given, native, shape in (
            ({}, True, (1, 1, 8, 1)),
            ({"hybrid_shard_degree": 1}, True, (8, 1, 1, 1)),
            ({"hybrid_shard_degree": 2}, False, (4, 1, 2, 1)),
            ({"tensor_parallel_degree": 2}, False, (1, 1, 4, 2)),
            ({"tensor_parallel_degree": 2, "hybrid_shard_degree": 1}, False, (4, 1, 1, 2)),
            ({"tensor_parallel_degree": 2, "expert_parallel_degree": 2}, False, (1, 2, 2, 2)),
            ({"expert_parallel_degree": 8}, False, (1, 8, 1, 1)),
        ):
            configuration = settings.read(given, {})
            self.assertEqual(ranks.is_native(configuration), native, given)
            self.assertEqual(ranks.ranker_of(configuration, 8).shape, shape, given)
        for given in ({"tensor_parallel_degree": 3}, {"tensor_parallel_degree": 4, "expert_parallel_degree": 4}):
            self.refuse("the world size 8", ranks.ranker_of, settings.read(given, {}), 8)


if __name__ == "__main__":
    sys.exit(suite.main())
