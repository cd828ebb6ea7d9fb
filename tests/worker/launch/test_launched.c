/* Facts that launchers tell a process by the variables that they set. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/config_assert.h"
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
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        "SLURM_STEP_NODELIST",
                                        "SLURM_GPUS_ON_NODE",
                                        "SLURM_RESTART_COUNT",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "MPI_LOCALNRANKS",
                                        "SM_HOSTS",
                                        "SM_CURRENT_HOST",
                                        "SM_NUM_GPUS",
                                        "TRAINING_JOB_NAME",
                                        "JOB_COMPLETION_INDEX",
                                        "SHOAL_JOB"};
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
    /* The number of the step's tasks counts, for the step may have fewer than the job. */
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    setenv("SLURM_LOCALID", "1", 1);
    expect("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "slurm-4711-0");
}
END_TEST

/* The script of sbatch has a task number too, and the steps in it inherit its variables. */
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

/* A step that is begun anew is another run. */
START_TEST(test_a_step_begun_anew)
{
    slurm_set();
    setenv("SLURM_RESTART_COUNT", "2", 1);
    expect("SLURM_NTASKS", "SLURM_PROCID", NULL, "slurm-4711-0-2");
}
END_TEST

/* srun --mpi=pmi2 says the same twice, and Slurm's says more. Under another launcher inside of a
 * step the numbers differ, and the step is not the job. */
START_TEST(test_srun_with_pmi)
{
    struct launched launched;
    slurm_set();
    setenv("SLURM_STEP_NODELIST", "n[1-2]", 1);
    setenv("PMI_SIZE", "8", 1);
    setenv("PMI_RANK", "3", 1);
    launched_read(&launched);
    ck_assert_str_eq(launched.launcher, "srun");
    ck_assert_str_eq(launched.hosts, "SLURM_STEP_NODELIST");
    setenv("PMI_RANK", "4", 1);
    launched_read(&launched);
    ck_assert_str_eq(launched.launcher, "mpiexec");
    ck_assert_ptr_null(launched.hosts);
}
END_TEST

/* These start one process on a node, which is no rank. */
START_TEST(test_launchers_of_nodes)
{
    struct launched launched;
    setenv("SM_HOSTS", "[\"algo-1\",\"algo-2\"]", 1);
    setenv("SM_CURRENT_HOST", "algo-2", 1);
    setenv("SM_NUM_GPUS", "8", 1);
    setenv("TRAINING_JOB_NAME", "train-7", 1);
    expect(NULL, NULL, NULL, "");
    launched_read_node(&launched);
    ck_assert_str_eq(launched.launcher, "SageMaker");
    ck_assert_str_eq(launched.hosts, "SM_HOSTS");
    ck_assert_str_eq(launched.own_host, "SM_CURRENT_HOST");
    ck_assert_str_eq(launched.ranks, "SM_NUM_GPUS");
    ck_assert_str_eq(launched.job, "train-7");
    unsetenv("SM_HOSTS");
    setenv("JOB_COMPLETION_INDEX", "1", 1);
    setenv("SHOAL_JOB", "uid", 1);
    expect(NULL, NULL, NULL, "");
    launched_read_node(&launched);
    ck_assert_str_eq(launched.rank, "JOB_COMPLETION_INDEX");
    ck_assert_str_eq(launched.job, "uid");
}
END_TEST

/* A program without a daemon says the line that starts it, with the nodes and ranks that it has. */
START_TEST(test_lines)
{
    static const struct {
        const char *variables[4]; /* NAME=VALUE */
        const char *line;
    } rows[] = {
        {{NULL}, ""},
        {{"SLURM_STEP_ID=0", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=8",
          "SLURM_STEP_TASKS_PER_NODE=4(x2)"},
         "srun -N2 --ntasks-per-node=1 shoalrun -n 4 -- "},
        {{"OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=4"}, "shoalrun -n 4 -- "},
        {{"OMPI_COMM_WORLD_SIZE=6", "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
         "mpirun -n 3 --map-by ppr:1:node shoalrun --hosts HOST,... -n 2 -- "},
        {{"PMI_SIZE=2", "MPI_LOCALNRANKS=1"},
         "mpiexec -n 2 -ppn 1 shoalrun --hosts HOST,... -n 1 -- "},
        {{"SLURM_STEP_ID=4294967291", "SLURM_PROCID=0", "SLURM_NTASKS=8"}, ""},
        {{"PMI_SIZE=x"}, ""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char line[LAUNCHED_LINE_BYTES], name[64];
        setup();
        for (size_t j = 0; j < 4 && rows[i].variables[j]; j++) {
            const char *text = rows[i].variables[j], *value = strchr(text, '=');
            snprintf(name, sizeof(name), "%.*s", (int)(value - text), text);
            setenv(name, value + 1, 1);
        }
        ck_assert_int_eq(launched_line(line), rows[i].line[0] != 0);
        ck_assert_msg(strncmp(line, rows[i].line, strlen(rows[i].line)) == 0, "%s", line);
        /* Behind it stands this program. */
        ck_assert_msg(!rows[i].line[0] || strstr(line, "test_launched"), "%s", line);
    }
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

/* Numbers of runs. 0 is nobody's. */
START_TEST(test_marks)
{
    ck_assert_uint_eq(launched_mark(""), 0);
    ck_assert_uint_ne(launched_mark("slurm-17-0"), 0);
    ck_assert_uint_eq(launched_mark("slurm-17-0"), launched_mark("slurm-17-0"));
    ck_assert_uint_ne(launched_mark("slurm-17-0"), launched_mark("slurm-17-1"));
}
END_TEST

/* --- the copy of the table for Python */

#define PYTHON TEST_SOURCE_DIR "/worker/python/shoal/_launcher_table.py"

static void python_row(FILE *out, const struct launcher *row)
{
    const struct {
        const char *key, *value;
    } pairs[] = {
        {"marked_by", row->marked_by},
        {"size", row->world_size},
        {"other_size", row->other_world_size},
        {"rank", row->rank},
        {"local_rank", row->local_rank},
        {"local_size", row->local_size},
        {"hosts", row->hosts},
        {"own_host", row->own_host},
        {"ranks", row->ranks},
        {"job", row->job},
    };
    fprintf(out, "    \"%s\": {\n", row->name);
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        if (pairs[i].value)
            fprintf(out, "        \"%s\": \"%s\",\n", pairs[i].key, pairs[i].value);
    fprintf(out, "    },\n");
}

/* The caller's. */
static char *python_text(void)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(out);
    fprintf(out, "\"\"\"Each launcher's names of its variables. Made from worker/launch/launched.c "
                 "by test_launched --update.\"\"\"\n\nLAUNCHERS = {\n");
    for (size_t i = 0; i < LAUNCHERS; i++)
        python_row(out, &launched_table[i]);
    fprintf(out, "}\n");
    fclose(out);
    return text;
}

START_TEST(test_python_has_the_same)
{
    char *made = python_text(), *there = config_file_read(PYTHON);
    ck_assert_msg(there && strcmp(made, there) == 0,
                  PYTHON " is not what the table says now: run test_launched --update");
    free(made);
    free(there);
}
END_TEST

START_TEST(test_update)
{
    char *made = python_text();
    config_file_write(PYTHON, made);
    free(made);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("launched");
    if (argc > 1 && strcmp(argv[1], "--update") == 0) {
        TCase *update = tcase_create("update");
        tcase_add_test(update, test_update);
        suite_add_tcase(suite, update);
        return suite_main(suite);
    }
    TCase *core = tcase_create("core");
    tcase_add_checked_fixture(core, setup, NULL);
    tcase_add_test(core, test_none);
    tcase_add_test(core, test_srun);
    tcase_add_test(core, test_the_script_of_sbatch);
    tcase_add_test(core, test_open_mpi_goes_first);
    tcase_add_test(core, test_pmi);
    tcase_add_test(core, test_a_step_begun_anew);
    tcase_add_test(core, test_srun_with_pmi);
    tcase_add_test(core, test_launchers_of_nodes);
    tcase_add_test(core, test_lines);
    tcase_add_test(core, test_a_long_name);
    tcase_add_test(core, test_marks);
    tcase_add_test(core, test_python_has_the_same);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
