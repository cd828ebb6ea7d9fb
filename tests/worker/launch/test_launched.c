/* What launchers say of a process, by the variables that they set. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/launch/launched.h"

/* Nothing of the launcher that may have started this test. */
static void setup(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "PMIX_NAMESPACE",
                                        "PMI_SIZE",
                                        "PMI_RANK",
                                        "PMI_JOBID",
                                        "MPI_LOCALRANKID",
                                        "SLURM_JOB_ID",
                                        "SLURM_STEP_ID",
                                        "SLURM_PROCID",
                                        "SLURM_LOCALID",
                                        "SLURM_NTASKS",
                                        "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
}

static void expect(const char *world_size, const char *rank, const char *local_rank,
                   const char *job)
{
    struct launched launched;
    launched_read(&launched);
    ck_assert_pstr_eq(launched.world_size, world_size);
    ck_assert_pstr_eq(launched.rank, rank);
    ck_assert_pstr_eq(launched.local_rank, local_rank);
    ck_assert_str_eq(launched.job, job);
}

START_TEST(test_none)
{
    expect(NULL, NULL, NULL, "");
}
END_TEST

static void slurm_set(void)
{
    setenv("SLURM_JOB_ID", "4711", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_PROCID", "3", 1);
    setenv("SLURM_NTASKS", "8", 1);
}

START_TEST(test_srun)
{
    slurm_set();
    expect("SLURM_NTASKS", "SLURM_PROCID", NULL, "slurm-4711-0");
    /* Of the step, which may have fewer tasks than the job. */
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    setenv("SLURM_LOCALID", "1", 1);
    expect("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "slurm-4711-0");
}
END_TEST

/* It has a task number too, and the steps in it inherit what it has. */
START_TEST(test_the_script_of_sbatch)
{
    slurm_set();
    unsetenv("SLURM_STEP_ID");
    expect(NULL, NULL, NULL, "");
    setenv("SLURM_STEP_ID", "4294967291", 1);
    expect(NULL, NULL, NULL, "");
    setenv("SLURM_STEP_ID", "x", 1);
    expect(NULL, NULL, NULL, "");
}
END_TEST

/* Its daemons are tasks of srun where it runs under Slurm. */
START_TEST(test_open_mpi_goes_first)
{
    slurm_set();
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
    expect("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "");
    setenv("PMIX_NAMESPACE", "prterun-host-17@1", 1);
    expect("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
           "prterun-host-17@1");
}
END_TEST

START_TEST(test_pmi)
{
    setenv("PMI_SIZE", "2", 1);
    expect("PMI_SIZE", NULL, NULL, "");
    setenv("PMI_RANK", "0", 1);
    setenv("MPI_LOCALRANKID", "0", 1);
    setenv("PMI_JOBID", "17.0", 1);
    expect("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "17.0");
}
END_TEST

/* The end of a long name is kept: there runs differ. */
START_TEST(test_a_long_name)
{
    char name[200];
    struct launched launched;
    memset(name, 'n', sizeof(name));
    memcpy(name + sizeof(name) - 5, "@123", 5);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("PMIX_NAMESPACE", name, 1);
    launched_read(&launched);
    ck_assert_uint_eq(strlen(launched.job), MESSAGE_NAME_BYTES - 1);
    ck_assert_str_eq(launched.job + MESSAGE_NAME_BYTES - 5, "@123");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("launched");
    TCase *core = tcase_create("core");
    tcase_add_checked_fixture(core, setup, NULL);
    tcase_add_test(core, test_none);
    tcase_add_test(core, test_srun);
    tcase_add_test(core, test_the_script_of_sbatch);
    tcase_add_test(core, test_open_mpi_goes_first);
    tcase_add_test(core, test_pmi);
    tcase_add_test(core, test_a_long_name);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
