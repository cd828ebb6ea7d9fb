/* The library that JAX loads: its names, and ranks that use it. */
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"
#include "worker/mpi/abi.h"

#define LIBRARY TEST_BUILD_DIR "/lib/libshoal-mpitrampoline.so"

/* Write the library's name for one of MPI's. */
static void own_name(const char *name, char own[128])
{
    const char *rest = strchr(name, '_');
    ck_assert_ptr_nonnull(rest);
    snprintf(own, 128, "%.*sABI%s", (int)(rest - name), name, rest);
}

static bool is_function(const char *name)
{
    while (*name && !islower((unsigned char)*name))
        name++;
    return *name;
}

/* All others fail. */
static bool is_here(const char *name)
{
    static const char *const here[] = {
        "MPI_Init_thread", "MPI_Finalize",  "MPI_Is_thread_main", "MPI_Error_string",
        "MPI_Comm_rank",   "MPI_Comm_size", "MPI_Comm_split",     "MPI_Comm_free",
        "MPI_Allreduce",   "MPI_Allgather", "MPI_Reduce_scatter", "MPI_Isend",
        "MPI_Irecv",       "MPI_Wait",      "MPI_Sendrecv",       "MPI_Get_library_version"};
    for (size_t i = 0; i < sizeof(here) / sizeof(*here); i++)
        if (strcmp(name, here[i]) == 0)
            return true;
    return false;
}

/* The trampoline ends the process for one name that is missing. */
START_TEST(test_names)
{
    char name[128], own[128], text[1024], wanted[160];
    int length, functions = 0, constants = 0;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(library, "%s", dlerror());
    __typeof__(&MPIABI_Error_string) error_string = dlsym(library, "MPIABI_Error_string");
    FILE *list = fopen(TEST_SOURCE_DIR "/worker/mpi/names.txt", "re");
    ck_assert_ptr_nonnull(list);
    while (fscanf(list, "%127s", name) == 1) {
        own_name(name, own);
        void *found = dlsym(library, own);
        ck_assert_msg(found, "%s is missing", own);
        constants += !is_function(name);
        functions += is_function(name);
        if (!is_function(name) || is_here(name))
            continue;
        int error = ((int (*)(void))found)();
        ck_assert_int_ne(error, 0);
        ck_assert_int_eq(error_string(error, text, &length), 0);
        snprintf(wanted, sizeof(wanted), "%s is not here", name);
        ck_assert_msg(strncmp(text, wanted, strlen(wanted)) == 0, "%s: %s", name, text);
    }
    fclose(list);
    ck_assert_int_gt(functions, 300);
    ck_assert_int_gt(constants, 200);
    ck_assert_int_eq(*(const int *)dlsym(library, "mpiabi_version_major"), 2);
    ck_assert_ptr_nonnull(dlsym(library, "mpiwrapper_version_patch"));
    ck_assert_ptr_nonnull(dlsym(library, "mpiwrapper_export_fortran_constants_"));
    ck_assert_ptr_null(dlsym(library, "process_enter"));
    dlclose(library);
}
END_TEST

/* Runs ranks to their end with this exit code. Returns what they wrote, the caller's. */
static struct process *run(const char *ranks, const char *nodes, const char *way, int code)
{
    const char *argv[] = {CLUSTER_BIN "shoalrun",           "-n", ranks,   "--nodes", nodes, "--",
                          TEST_BUILD_DIR "/tests/mpi_rank", way,  LIBRARY, NULL};
    struct process *process = process_run(argv);
    int got = process_wait(process, CLUSTER_PATIENCE_MS);
    ck_assert_msg(got == code, "exit code %d, not %d\n%.1500s\n%.1500s", got, code,
                  process_output(process), process_errors(process));
    return process;
}

/* The ways of mpi_rank.c in which every rank ends well, on one node and on two. */
static const struct {
    const char *ranks, *nodes, *way;
} good_ends[] = {{"2", "1", "well"}, {"4", "1", "well"}, {"2", "2", "well"}, {"4", "1", "some"},
                 {"2", "2", "some"}, {"3", "1", "left"}, {"2", "2", "left"}};

START_TEST(test_ranks_that_end_well)
{
    process_free(run(good_ends[_i].ranks, good_ends[_i].nodes, good_ends[_i].way, 0));
}
END_TEST

START_TEST(test_keys_that_are_not_each_there_once)
{
    struct process *process = run("2", "1", "keys", 0);
    ck_assert_ptr_nonnull(strstr(process_errors(process), "libshoal-mpitrampoline: the processes"));
    process_free(process);
}
END_TEST

START_TEST(test_a_lost_rank)
{
    struct process *process = run("3", "1", "lost", 128 + 9);
    ck_assert_str_eq(process_output(process), "flushedflushed");
    ck_assert_ptr_nonnull(strstr(process_errors(process), ") ended with exit code 1\n"));
    process_free(process);
}
END_TEST

START_TEST(test_without_a_daemon)
{
    int provided, length;
    char text[1024];
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ck_assert_int_eq(setenv("SHOAL_SOCKET", "/nowhere/shoald.sock", 1), 0);
    __typeof__(&MPIABI_Init_thread) begin = dlsym(library, "MPIABI_Init_thread");
    __typeof__(&MPIABI_Error_string) error_string = dlsym(library, "MPIABI_Error_string");
    int error = begin(NULL, NULL, 1, &provided);
    ck_assert_int_ne(error, 0);
    ck_assert_int_eq(error_string(error, text, &length), 0);
    ck_assert_msg(strstr(text, "/nowhere/shoald.sock"), "%s", text);
    dlclose(library);
}
END_TEST

/* Without the library a program would find that MPItrampoline cannot load a name. */
START_TEST(test_a_missing_library)
{
    static const char *const ways[][6] = {{"--print", "jax", NULL},
                                          {"-n", "1", "--as", "jax", "true", NULL}};
    char *folder = suite_make_directory(), copy[600], command[1400];
    snprintf(copy, sizeof(copy), "%s/shoalrun", folder);
    snprintf(command, sizeof(command), "cp %s %s", CLUSTER_BIN "shoalrun", copy);
    ck_assert_int_eq(system(command), 0);
    for (int i = 0; i < 2; i++) {
        const char *argv[8] = {copy};
        memcpy(&argv[1], ways[i], sizeof(ways[i]));
        struct process *process = process_run(argv);
        ck_assert_int_gt(process_wait(process, CLUSTER_PATIENCE_MS), 0);
        ck_assert_msg(strstr(process_errors(process),
                             "the library for JAX cannot be loaded: libshoal-mpitrampoline.so: "),
                      "%s", process_errors(process));
        ck_assert_str_eq(process_output(process), "");
        process_free(process);
    }
    suite_remove_directory(folder);
}
END_TEST

START_TEST(test_its_path)
{
    char path[4096];
    const char *argv[] = {CLUSTER_BIN "shoalrun", "--print", "jax", NULL};
    struct process *process = process_run(argv);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    ck_assert_int_eq(sscanf(process_output(process), "%4095s", path), 1);
    ck_assert_int_eq(access(path, R_OK), 0);
    ck_assert_str_eq(strrchr(path, '/'), "/libshoal-mpitrampoline.so");
    process_free(process);
    const char *words[] = {CLUSTER_BIN "shoalrun",
                           "-n",
                           "1",
                           "--as",
                           "jax",
                           "--",
                           "sh",
                           "-c",
                           "echo $JAX_CPU_COLLECTIVES_IMPLEMENTATION $MPITRAMPOLINE_LIB",
                           NULL};
    process = process_run(words);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    char wanted[4200];
    snprintf(wanted, sizeof(wanted), "mpi %s\n", path);
    ck_assert_str_eq(process_output(process), wanted);
    process_free(process);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mpi");
    TCase *names = tcase_create("names");
    tcase_add_test(names, test_names);
    tcase_add_test(names, test_without_a_daemon);
    tcase_add_test(names, test_a_missing_library);
    tcase_add_test(names, test_its_path);
    suite_add_tcase(suite, names);
    TCase *ranks = tcase_create("ranks");
    tcase_set_timeout(ranks, 120);
    tcase_add_loop_test(ranks, test_ranks_that_end_well, 0,
                        sizeof(good_ends) / sizeof(good_ends[0]));
    tcase_add_test(ranks, test_keys_that_are_not_each_there_once);
    tcase_add_test(ranks, test_a_lost_rank);
    suite_add_tcase(suite, ranks);
    return suite_main(suite);
}
