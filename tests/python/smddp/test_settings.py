#!/usr/bin/python3
"""Settings of SageMaker and the launchers: read, checked, and completed."""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import suite  # noqa: E402

sys.path.insert(0, str(suite.TREE / "worker" / "python"))

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
# A job of two hosts with two GPUs each, as SageMaker's toolkit tells of it.
SAGEMAKER = {
    "SM_HOSTS": '["algo-1", "algo-2"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_NUM_GPUS": "2",
    "SM_HPS": '{"lr": 0.1, "epochs": 2}',
    "SM_FRAMEWORK_PARAMS": '{"sagemaker_distributed_dataparallel_enabled": true}',
}


class SettingsCase(unittest.TestCase):
    def setUp(self):
        from shoal.smddp import _settings

        from shoal.torch import _hosts

        self.settings = _settings
        self.addCleanup(setattr, _hosts, "RESOURCE_CONFIG", _hosts.RESOURCE_CONFIG)
        _hosts.RESOURCE_CONFIG = pathlib.Path("/nowhere/resourceconfig.json")

    def read(self, environment, resource_config=None):
        return self.settings.read(environment, resource_config or {})

    def refused(self, environment, *words, resource_config=None):
        """The error names these."""
        from shoal import InvalidError

        with self.assertRaises(InvalidError) as raised:
            self.read(environment, resource_config)
        for word in words:
            self.assertIn(word, str(raised.exception))


class Places(SettingsCase):
    def numbers(self, environment):
        return [value and value.number for value in self.read(environment).place]

    def test_nothing_is_set(self):
        settings = self.read({})
        self.assertEqual(self.numbers({}), [None] * 4)
        self.assertFalse(settings.started)
        self.assertEqual([settings.master, settings.port, settings.hosts], [None, None, []])

    def test_each_launcher(self):
        for environment in (TORCHRUN, OPEN_MPI, MPICH, {**TORCHRUN, **OPEN_MPI}):
            self.assertEqual(self.numbers(environment), [3, 4, 1, 2])
            self.assertTrue(self.read(environment).started)

    def test_a_launcher_completes_another(self):
        self.assertEqual(self.numbers({"RANK": "3", "WORLD_SIZE": "4", **OPEN_MPI}), [3, 4, 1, 2])

    def test_two_launchers_contradict_each_other(self):
        self.refused({**TORCHRUN, **OPEN_MPI, "RANK": "2"}, "RANK=2", "OMPI_COMM_WORLD_RANK=3")
        self.refused({**OPEN_MPI, **MPICH, "PMI_SIZE": "8"}, "OMPI_COMM_WORLD_SIZE=4", "PMI_SIZE=8")

    def test_torchrun_under_mpirun(self):
        outer = {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
        for inner in ({"TORCHELASTIC_RUN_ID": "none"}, {"SHOAL_JOB": "job"}):
            self.assertEqual(self.numbers({**outer, **TORCHRUN, **inner}), [3, 4, 1, 2])

    def test_numbers_that_are_none(self):
        for text in ("x", "-1", "1.5", "²", " 1"):
            self.refused({**TORCHRUN, "RANK": text}, f'RANK is "{text}"')
        self.refused({"SM_NUM_GPUS": "all"}, 'SM_NUM_GPUS is "all"')
        self.refused({"MASTER_PORT": "70000"}, "MASTER_PORT=70000")

    def test_ranks_that_cannot_be(self):
        self.refused({**TORCHRUN, "RANK": "4"}, "RANK=4", "WORLD_SIZE=4")
        self.refused({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "LOCAL_RANK=2", "LOCAL_SIZE=2")
        self.refused({**TORCHRUN, "LOCAL_WORLD_SIZE": "8"}, "LOCAL_WORLD_SIZE=8", "WORLD_SIZE=4")


class Hosts(SettingsCase):
    def test_a_job_of_sagemaker(self):
        settings = self.read({**SAGEMAKER, **OPEN_MPI})
        self.assertEqual(settings.hosts, ["algo-1", "algo-2"])
        self.assertEqual([settings.current_host, settings.master], ["algo-2", "algo-1"])
        self.assertEqual(settings.hyperparameters, {"lr": 0.1, "epochs": 2})
        self.assertEqual(settings.unused, [])

    def test_the_file(self):
        config = {"hosts": ["a", "b"], "current_host": "b", "network_interface_name": "eth0"}
        for settings in (self.read({}, config), self.read({"SM_RESOURCE_CONFIG": json.dumps(config)})):
            self.assertEqual([settings.hosts, settings.current_host], [["a", "b"], "b"])

    def test_the_file_contradicts(self):
        config = {"hosts": ["algo-1", "algo-3"], "current_host": "algo-3"}
        self.refused(
            SAGEMAKER, "SM_HOSTS", "algo-2", "resourceconfig.json", "algo-3", resource_config=config
        )
        config["hosts"] = ["algo-2", "algo-1"]
        self.refused(
            SAGEMAKER, "SM_CURRENT_HOST is algo-2", "resourceconfig.json says algo-3", resource_config=config
        )

    def test_this_host_is_no_host_of_the_job(self):
        self.refused({**SAGEMAKER, "SM_CURRENT_HOST": "algo-3"}, "algo-3", "SM_HOSTS names algo-1, algo-2")

    def test_the_number_of_ranks(self):
        environment = {**SAGEMAKER, "SM_NUM_GPUS": "8", "WORLD_SIZE": "4"}
        self.refused(environment, "algo-1, algo-2: SM_HOSTS", "SM_NUM_GPUS=8", "9 ranks at", "WORLD_SIZE=4")
        self.refused({**OPEN_MPI, "SM_NUM_GPUS": "8"}, "SM_NUM_GPUS=8", "LOCAL_SIZE=2")
        self.refused({**SAGEMAKER, "SM_NUM_GPUS": "0", "WORLD_SIZE": "1"}, "2 (algo-1", "WORLD_SIZE=1")
        self.refused({**SAGEMAKER, **TORCHRUN, "SM_HOSTS": '["algo-2"]'}, "1 (algo-2", "WORLD_SIZE=4")

    def test_hosts_with_other_numbers_of_gpus(self):
        """8 on one, 4 on another; what holds for every host is multiplied."""
        sizes = {"WORLD_SIZE": "12", "LOCAL_WORLD_SIZE": "4", "SM_NUM_GPUS": "4"}
        environment = {**SAGEMAKER, **TORCHRUN, **sizes}
        self.assertTrue(self.read(environment).started)
        self.assertTrue(self.read({**environment, "SM_NUM_GPUS": "0"}).started)
        self.refused({**environment, "WORLD_SIZE": "4"}, "SM_NUM_GPUS=4", "5 ranks at least", "WORLD_SIZE=4")
        environment["SM_FRAMEWORK_PARAMS"] = '{"sagemaker_mpi_num_of_processes_per_host": 4}'
        self.refused(environment, "(SM_FRAMEWORK_PARAMS)=4", "makes 8 ranks", "WORLD_SIZE=12")

    def test_without_gpus_the_launcher_has_its_way(self):
        environment = {**SAGEMAKER, **TORCHRUN, "SM_NUM_GPUS": "0"}
        self.assertTrue(self.read(environment).started)

    def test_the_processes_of_a_host(self):
        name = "sagemaker_mpi_num_of_processes_per_host"
        environment = {**SAGEMAKER, **OPEN_MPI, "SM_NUM_GPUS": "8"}
        environment["SM_FRAMEWORK_PARAMS"] = json.dumps({name: 2})
        self.assertTrue(self.read(environment).started)
        environment["SM_FRAMEWORK_PARAMS"] = json.dumps({name: 4})
        self.refused(environment, f"{name} (SM_FRAMEWORK_PARAMS)=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2")

    def test_the_instance_groups_of_the_job(self):
        groups = {
            "training": {"hosts": ["algo-2", "algo-3"]},
            "data": {"hosts": ["algo-1"]},
        }
        settings = self.read(
            {
                "SM_HOSTS": '["algo-1", "algo-2", "algo-3"]',
                "SM_INSTANCE_GROUPS_DICT": json.dumps(groups),
                "SM_DISTRIBUTION_INSTANCE_GROUPS": '["training"]',
                **OPEN_MPI,
            }
        )
        self.assertEqual([settings.hosts, settings.master], [["algo-2", "algo-3"], "algo-2"])

    def test_one_node_only(self):
        name = "SMDATAPARALLEL_USE_SINGLENODE"
        self.refused({**SAGEMAKER, name: "1"}, f"{name}=1", "SM_HOSTS", "algo-2")
        self.refused({**OPEN_MPI, name: "1"}, f"{name}=1", "LOCAL_SIZE=2", "WORLD_SIZE=4")
        self.read({**OPEN_MPI, name: "0"})
        self.read({**OPEN_MPI, name: "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"})

    def test_what_is_no_json(self):
        self.refused({"SM_HOSTS": "algo-1,algo-2"}, "SM_HOSTS is no JSON")
        self.refused({"SM_HOSTS": '{"a": 1}'}, "SM_HOSTS", "no JSON list")
        self.refused({"SM_HOSTS": "[1]"}, "SM_HOSTS is no list of names")
        self.refused({"SM_HPS": "[]"}, "SM_HPS", "no JSON object")
        self.refused({"SM_FRAMEWORK_PARAMS": "{"}, "SM_FRAMEWORK_PARAMS is no JSON")


class Masters(SettingsCase):
    def test_who_is_the_master(self):
        server = {"SMDATAPARALLEL_SERVER_ADDR": "algo-1", "SMDATAPARALLEL_SERVER_PORT": "7592"}
        settings = self.read({**OPEN_MPI, **server})
        self.assertEqual([settings.master, settings.port], ["algo-1", 7592])
        named = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}
        settings = self.read({**OPEN_MPI, **server, **named})
        self.assertEqual([settings.master, settings.port], ["10.0.0.1", 1234])

    def test_one_node(self):
        environment = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
        self.assertEqual(self.read(environment).master, "127.0.0.1")

    def test_nobody_says(self):
        self.assertIsNone(self.read(OPEN_MPI).master)
        self.assertEqual(self.read({**MPICH, "SLURM_JOB_NODELIST": "n[3-4]"}).master, "n3")

    def test_under_shoalrun_the_store_is_a_file(self):
        self.assertIsNone(self.read({**TORCHRUN, **SAGEMAKER, "SHOAL_JOB": "job"}).master)


class Unused(SettingsCase):
    def test_they_are_named(self):
        parameters = {"sagemaker_instance_type": "ml.p4d.24xlarge", "sagemaker_new": 1}
        environment = {
            "SMDATAPARALLEL_OPTIMIZE_SDP": "true",
            "SMDATAPARALLEL_NEW": "1",
            "SMDDP_AG_SORT_BUFFER_SIZE_BYTES": "8388608",
            "SM_MODEL_DIR": "/opt/ml/model",  # scripts look at it
            "SM_FRAMEWORK_PARAMS": json.dumps(parameters),
        }
        self.assertEqual(
            self.read(environment).unused,
            [
                "SMDATAPARALLEL_NEW (not known)",
                "SMDATAPARALLEL_OPTIMIZE_SDP (sharded training has one way here)",
                "SMDDP_AG_SORT_BUFFER_SIZE_BYTES (no buffers for it are on the GPU)",
                "SM_FRAMEWORK_PARAMS' sagemaker_instance_type (any machine will do)",
                "SM_FRAMEWORK_PARAMS' sagemaker_new (not known)",
            ],
        )

    def test_once(self):
        environment = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "0", "SMDATAPARALLEL_A": "1"}
        with self.assertLogs("shoal.smddp") as log:
            for _ in range(3):
                self.settings.apply(environment)
        self.assertEqual(len(log.output), 1)
        self.assertIn("without a meaning here: SMDATAPARALLEL_A (not known)", log.output[0])

    def test_by_one_rank_of_a_node(self):
        with self.assertNoLogs("shoal.smddp"):
            self.settings.apply({**OPEN_MPI, "SMDATAPARALLEL_B": "1"})


class Completed(SettingsCase):
    def completed(self, environment):
        environment = dict(environment)
        self.settings.apply(environment)
        again = dict(environment)
        self.settings.apply(again)
        self.assertEqual(again, environment)
        return environment

    def test_under_mpirun(self):
        got = self.completed({**OPEN_MPI, **SAGEMAKER, "SMDATAPARALLEL_SERVER_PORT": "7592"})
        for name, value in TORCHRUN.items():
            self.assertEqual(got[name], value)
        self.assertEqual([got["MASTER_ADDR"], got["MASTER_PORT"]], ["algo-1", "7592"])
        self.assertEqual(got["SMDATAPARALLEL_LOCAL_RANK"], "1")

    def test_jobs_of_mpirun_seldom_share_a_port(self):
        environment = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
        ports = {
            self.completed({**environment, "OMPI_MCA_ess_base_jobid": job})["MASTER_PORT"]
            for job in ("2145714177", "2145714178", "1")
        }
        self.assertEqual(len(ports), 3)

    def test_under_torchrun(self):
        environment = {**TORCHRUN, "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
        got = self.completed(environment)
        self.assertEqual(got, {**environment, "SMDATAPARALLEL_LOCAL_RANK": "1"})

    def test_under_srun(self):
        batch = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_NODELIST": "n[2-3]"}
        slurm = {**batch, "SLURM_STEP_ID": "0"}
        got = self.completed(slurm)
        self.assertEqual([got["RANK"], got["WORLD_SIZE"], got["MASTER_ADDR"]], ["3", "4", "n2"])
        self.assertEqual(got["SMDATAPARALLEL_LOCAL_RANK"], "1")
        # pmi2 of srun has the same numbers, and no host.
        got = self.completed({**slurm, **MPICH})
        self.assertEqual([got["RANK"], got["MASTER_ADDR"]], ["3", "n2"])
        # A script of sbatch, before or without srun; salloc's shell is a step of its own kind.
        for more in ({}, {"SLURM_STEP_ID": "4294967291"}, {"SLURM_STEP_ID": "4294967290"}):
            self.assertEqual(self.completed({**batch, **more}), {**batch, **more})
            self.assertFalse(self.settings.apply({**batch, **more}).started)

    def test_under_shoalrun(self):
        environment = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "SHOAL_JOB": "job"}
        self.assertNotIn("MASTER_ADDR", self.completed(environment))

    def test_without_a_launcher(self):
        self.assertEqual(self.completed({}), {})
        self.assertEqual(self.completed(SAGEMAKER), SAGEMAKER)

    def test_a_local_rank_of_another(self):
        self.refused(
            {**TORCHRUN, "SMDATAPARALLEL_LOCAL_RANK": "0"}, "SMDATAPARALLEL_LOCAL_RANK=0", "LOCAL_RANK=1"
        )


if __name__ == "__main__":
    sys.exit(suite.main())
