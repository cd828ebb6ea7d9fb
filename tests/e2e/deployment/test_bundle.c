/* A bundle: moved to another place, it runs with the libraries that are in it. Whether there is a
 * GPU is asked by the script that is in it too, and the examples find what they read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/cuda/cuda_stand_in.h"
#include "tests/lib/suite.h"

#ifdef SHOAL_SANITIZED
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define PYTHON "/usr/bin/python3" /* the system's, which may have torch */

/* Output of a command that must end well, or NULL; the caller frees it. */
static char *output_of(const char *const *argv)
{
    struct process *process = process_run(argv);
    int code = process_wait(process, 240000);
    ck_assert_msg(code == 0, "%s: exit code %d\n%.1500s\n%.1500s", argv[0], code,
                  process_output(process), process_errors(process));
    char *text = strdup(process_output(process));
    process_free(process);
    return text;
}

static char *make_bundle(const char *directory)
{
    char made[300], moved[300];
    snprintf(made, sizeof(made), "%s/made", directory);
    snprintf(moved, sizeof(moved), "%s/moved here", directory);
    const char *argv[] = {TEST_SOURCE_DIR "/scripts/bundle.sh", TEST_BUILD_DIR, made, NULL};
    char *said = output_of(argv);
    ck_assert_ptr_nonnull(strstr(said, " programs, "));
    free(said);
    ck_assert_int_eq(rename(made, moved), 0);
    return strdup(moved);
}

static char *in(const char *folder, const char *name)
{
    char *path = NULL;
    ck_assert_int_gt(asprintf(&path, "%s/%s", folder, name), 0);
    return path;
}

/* A folder that somebody else has put there is left alone, also where it looks like a place for
 * programs. */
START_TEST(test_a_folder_of_others)
{
    char *own = suite_make_directory();
    char *other = in(own, "other"), *programs = in(own, "other/bin");
    char *file = in(own, "other/bin/theirs");
    ck_assert_int_eq(mkdir(other, 0755), 0);
    ck_assert_int_eq(mkdir(programs, 0755), 0);
    FILE *made = fopen(file, "wxe");
    ck_assert_ptr_nonnull(made);
    fclose(made);
    const char *argv[] = {TEST_SOURCE_DIR "/scripts/bundle.sh", TEST_BUILD_DIR, other, NULL};
    struct process *process = process_run(argv);
    ck_assert_int_eq(process_wait(process, 240000), 1);
    ck_assert_ptr_nonnull(strstr(process_errors(process), "is there and no bundle"));
    process_free(process);
    ck_assert_int_eq(access(file, F_OK), 0);
    free(file);
    free(programs);
    free(other);
    suite_remove_directory(own);
}
END_TEST

/* Every library but the system's own comes out of the bundle. */
static void check_libraries(const char *folder, const char *program)
{
    char *path = in(folder, program), *rest = NULL;
    const char *argv[] = {"/usr/bin/ldd", path, NULL};
    char *text = output_of(argv);
    int own = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const char *place = strstr(line, "=> ");
        bool of_libc = strstr(line, "libc.so") || strstr(line, "libm.so") ||
                       strstr(line, "libdl.so") || strstr(line, "librt.so") ||
                       strstr(line, "libpthread.so") || strstr(line, "libresolv.so");
        ck_assert_msg(!strstr(line, "not found"), "%s: %s", program, line);
        if (!place || of_libc)
            continue;
        ck_assert_msg(strstr(place, "/moved here/") != NULL, "%s: %s", program, line);
        own++;
    }
    ck_assert_int_gt(own, 0);
    free(text);
    free(path);
}

/* Made once for all tests; NULL: a sanitized build needs libraries that no bundle has. */
static char *directory, *folder;

static void setup(void)
{
    if (SANITIZED)
        return;
    directory = suite_make_directory();
    folder = make_bundle(directory);
}

static void teardown(void)
{
    free(folder);
    if (directory)
        suite_remove_directory(directory);
}

/* Check that the programs which check and measure a GPU say why they do not, and end well. */
static void expect_no_gpu(const char *in_folder, const char *driver, const char *reason)
{
    char *check = in(in_folder, "share/shoal/check-gpu.sh");
    char *bench = in(in_folder, "share/shoal/gpu.py"), said[200];
    const char *const checks[] = {check, NULL}, *const measures[] = {PYTHON, "-B", bench, NULL};
    setenv("SHOAL_CUDA_LIBRARY", driver, 1);
    for (int i = 0; i < 2; i++) {
        char *text = output_of(i == 0 ? checks : measures);
        snprintf(said, sizeof(said), "SKIP %s-gpu: %s", i == 0 ? "check" : "bench", reason);
        ck_assert_msg(strstr(text, said) != NULL, "%s", text);
        free(text);
    }
    free(check);
    free(bench);
}

START_TEST(test_programs)
{
    if (!folder) {
        suite_skip("programs of the bundle",
                   "a sanitized build needs libraries that no bundle has");
        return;
    }
    check_libraries(folder, "bin/shoald");
    check_libraries(folder, "bin/shoalperf");
    check_libraries(folder, "lib/libshoal.so");
    check_libraries(folder, "lib/libshoal-mpitrampoline.so");
    char *page = in(folder, "share/man/man3/shoal_open.3");
    ck_assert_int_eq(access(page, R_OK), 0);
    free(page);
    char *run = in(folder, "bin/shoalrun"), *perf = in(folder, "bin/shoalperf");
    char *digits = in(folder, "bin/shoal-digits");
    const char *reduce[] = {run,  "--timeout",  "100", "--nodes", "2",  "-n", "2", "--",
                            perf, "all_reduce", "-b",  "1M",      "-n", "2",  NULL};
    char *text = output_of(reduce);
    ck_assert_ptr_nonnull(strstr(text, "Out of bounds values : 0 OK"));
    free(text);
    const char *train[] = {run,   "--timeout",   "100",      "-n", "2",
                           "--",  digits,        "--epochs", "1",  "--accuracy-min",
                           "0.1", "--no-verify", NULL};
    free(output_of(train));
    /* A driver that can do nothing is no GPU, nor is one alone. */
    expect_no_gpu(folder, "/nowhere/libcuda.so.1", "GPU 0: no CUDA driver");
    setenv("STAND_IN_DEVICES", "0", 1);
    expect_no_gpu(folder, stand_in_open()->path, "GPU 0: cuInit: CUDA_ERROR_NO_DEVICE");
    free(run);
    free(perf);
    free(digits);
}
END_TEST

/* The examples start as check-gpu.sh starts them; the package and what they read are in the bundle
 * alone. */
START_TEST(test_examples)
{
    static const char *const scripts[] = {"python/examples/digits_ddp.py",
                                          "python/examples/transformer_ddp.py"};
    const char *probe[] = {PYTHON, "-c",
                           "import torch, torch.distributed as d; assert d.is_available();"
                           "assert tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 6)",
                           NULL};
    if (!folder) {
        suite_skip("examples of the bundle",
                   "a sanitized build needs libraries that no bundle has");
        return;
    }
    struct process *process = process_run(probe);
    int code = process_wait(process, 240000);
    process_free(process);
    if (code != 0) {
        suite_skip("examples of the bundle", PYTHON " has no torch 2.6 or later");
        return;
    }
    char *run = in(folder, "bin/shoalrun"), *package = in(folder, "python");
    char *library = in(folder, "lib/libshoal.so");
    setenv("PYTHONPATH", package, 1);
    setenv("SHOAL_LIBRARY", library, 1);
    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        char *script = in(folder, scripts[i]);
        const char *train[] = {run,    "--timeout", "200",  "-n",      "1", "--",
                               PYTHON, "-B",        script, "--steps", "2", NULL};
        char *text = output_of(train);
        ck_assert_ptr_nonnull(strstr(text, "{\"backend\": \"shoal\", \"losses\": ["));
        free(text);
        free(script);
    }
    free(run);
    free(package);
    free(library);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bundle");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 280);
    tcase_add_unchecked_fixture(core, setup, teardown);
    tcase_add_test(core, test_programs);
    tcase_add_test(core, test_examples);
    tcase_add_test(core, test_a_folder_of_others);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
