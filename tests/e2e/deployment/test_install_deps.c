/* The words of scripts/install-deps.sh while it installs, with stand-ins for apt-get and
 * dpkg-query. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/process.h"
#include "tests/lib/suite.h"

/* Everything is there but the package that the test names. */
#define DPKG_QUERY                                                                                 \
    "#!/bin/bash\nfor name in \"${@:4}\"; do [[ $name == \"$MISSING\" ]] ||"                       \
    " echo \"$name installed\"; done\n"
/* The stand-in can install when it has the lists: at once, or after an update, or never. Like
 * apt-get, it closes the descriptor of its status for the programs of packages, whose output must
 * not fail. */
#define APT_GET                                                                                    \
    "#!/bin/bash\n"                                                                                \
    "folder=${0%/*} words=$*\n"                                                                    \
    "fd=${words##*Status-Fd=}\n"                                                                   \
    "fd=${fd%% *}\n"                                                                               \
    "if [[ $* == *update* ]]; then touch \"$folder/lists\"; exit; fi\n"                            \
    "if [[ $FAILS == always || ($FAILS == once && ! -e $folder/lists) ]]; then"                    \
    " echo 'E: no such package' >&2; exit 100; fi\n"                                               \
    "if [[ $* == *--simulate* ]]; then printf 'Inst check (1)\\nInst libcheck (2)\\nConf "         \
    "check\\n';"                                                                                   \
    " exit; fi\n"                                                                                  \
    "[[ $* == *--no-install-recommends*check* ]] || exit 1\n"                                      \
    "printf 'dlstatus:1:%s:Retrieving file 1 of 2\\n' 10.5 41.0 47.1 100.0 >&$fd\n"                \
    "(eval \"exec $fd>&-\"; echo 'Setting up check') || exit 1\n"                                  \
    "printf 'pmstatus:libcheck:amd64:%s:Installed libcheck (amd64)\\n' 0.0 66.6 80 >&$fd\n"
#define SUDO "#!/bin/bash\nexec \"$@\"\n"

#define SAID                                                                                       \
    "installing 2 packages, for want of check\n  fetched 40 %\n  fetched 100 %\n  installed 0 %\n" \
    "  installed 60 %\n  installed 80 %\n  installed all\n"

static char *folder;

static void program_make(const char *name, const char *text)
{
    char *path = NULL;
    ck_assert_int_gt(asprintf(&path, "%s/%s", folder, name), 0);
    FILE *file = fopen(path, "wxe");
    ck_assert_msg(file != NULL, "%s cannot be made", path);
    fputs(text, file);
    fclose(file);
    ck_assert_int_eq(chmod(path, 0755), 0);
    free(path);
}

static void setup(void)
{
    char *path = NULL;
    folder = suite_make_directory();
    program_make("dpkg-query", DPKG_QUERY);
    program_make("apt-get", APT_GET);
    program_make("sudo", SUDO);
    ck_assert_int_gt(asprintf(&path, "%s:%s", folder, getenv("PATH")), 0);
    setenv("PATH", path, 1);
    free(path);
}

static void teardown(void)
{
    suite_remove_directory(folder);
}

/* Its output, which the caller frees, when it has ended as expected. */
static char *install(const char *missing, const char *fails, int expected)
{
    const char *argv[] = {TEST_SOURCE_DIR "/scripts/install-deps.sh", NULL};
    setenv("MISSING", missing, 1);
    setenv("FAILS", fails, 1);
    struct process *process = process_run(argv);
    int code = process_wait(process, 60000);
    ck_assert_msg(code == expected, "%d: %s", code, process_errors(process));
    if (expected != 0)
        ck_assert_msg(
            strstr(process_errors(process), "E: no such package\ncould not install check"), "%s",
            process_errors(process));
    char *output = strdup(process_output(process));
    process_free(process);
    return output;
}

START_TEST(test_nothing_is_missing)
{
    char *said = install("", "always", 0);
    ck_assert_str_eq(said, "");
    free(said);
}
END_TEST

START_TEST(test_how_far_it_is)
{
    char *said = install("check", "", 0);
    ck_assert_str_eq(said, SAID);
    free(said);
}
END_TEST

START_TEST(test_no_lists_yet)
{
    char *said = install("check", "once", 0);
    ck_assert_str_eq(said, "fetching the lists of packages\n" SAID);
    free(said);
}
END_TEST

START_TEST(test_it_fails)
{
    char *said = install("check", "always", 1);
    ck_assert_str_eq(said, "fetching the lists of packages\n");
    free(said);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("install_deps");
    TCase *core = tcase_create("core");
    tcase_add_checked_fixture(core, setup, teardown);
    tcase_set_timeout(core, 120);
    tcase_add_test(core, test_nothing_is_missing);
    tcase_add_test(core, test_how_far_it_is);
    tcase_add_test(core, test_no_lists_yet);
    tcase_add_test(core, test_it_fails);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
