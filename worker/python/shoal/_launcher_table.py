"""Each launcher's names of its variables. Made from worker/launch/launched.c by test_launched --update."""

LAUNCHERS = {
    "mpirun": {
        "size": "OMPI_COMM_WORLD_SIZE",
        "rank": "OMPI_COMM_WORLD_RANK",
        "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
        "local_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
        "job": "PMIX_NAMESPACE",
    },
    "mpiexec": {
        "size": "PMI_SIZE",
        "rank": "PMI_RANK",
        "local_rank": "MPI_LOCALRANKID",
        "local_size": "MPI_LOCALNRANKS",
        "job": "PMI_JOBID",
    },
    "srun": {
        "marked_by": "SLURM_STEP_ID",
        "size": "SLURM_STEP_NUM_TASKS",
        "other_size": "SLURM_NTASKS",
        "rank": "SLURM_PROCID",
        "local_rank": "SLURM_LOCALID",
        "local_size": "SLURM_STEP_TASKS_PER_NODE",
        "hosts": "SLURM_STEP_NODELIST",
        "ranks": "SLURM_GPUS_ON_NODE",
    },
    "SageMaker": {
        "marked_by": "SM_HOSTS",
        "hosts": "SM_HOSTS",
        "own_host": "SM_CURRENT_HOST",
        "ranks": "SM_NUM_GPUS",
        "job": "TRAINING_JOB_NAME",
    },
    "Kubernetes": {
        "marked_by": "JOB_COMPLETION_INDEX",
        "rank": "JOB_COMPLETION_INDEX",
        "job": "SHOAL_JOB",
    },
}
