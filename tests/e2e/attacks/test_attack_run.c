/* Other local users and the daemons of shoalrun. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

static char *temporary;

static void setup(void)
{
    temporary = suite_make_directory();
}

static void teardown(void)
{
    suite_remove_directory(temporary);
}

/* Whoever starts a daemon with the name of one of the run's, as another user could, is turned away
 * by the others: he does not know the run's secret, which this user alone may read. */
START_TEST(test_strangers_are_no_daemons)
{
    static const char *const names[] = {"node0", "node1", "node2"};
    static const char attack[] =
        "folder=${SHOAL_SOCKET%/*}; stat -c 'mode %a' \"$folder/secret\"\n"
        "perl -0pe 's/,\\s*\"secret_file\".*?\\n\\}/\\n}/s; s/(\"listen\".*?127.0.0.)1/${1}2/s;"
        " s/\\.sock/.stranger/' \"$folder/$0.json\" >\"$folder/stranger.json\"\n"
        "\"$1\" --config \"$folder/stranger.json\" >\"$folder/stranger.log\" 2>&1 &\n"
        "for _ in $(seq 300); do grep -qs 'does not know the secret' \"$folder\"/*.log && break; "
        "sleep 0.1; done\n"
        "kill $!; wait; cat \"$folder\"/*.log";
    char variable[512];
    snprintf(variable, sizeof(variable), "TMPDIR=%s", temporary);
    const char *environment[] = {variable, "SHOAL_SOCKET=", NULL};
    const char *argv[] = {CLUSTER_BIN "shoalrun",
                          "--nodes",
                          "3",
                          "--cpu-nodes",
                          "1",
                          "-n",
                          "1",
                          "--",
                          "bash",
                          "-c",
                          attack,
                          names[_i],
                          CLUSTER_BIN "shoald",
                          NULL};
    struct process *process =
        process_start(&(struct process_start){.argv = argv, .environment = environment});
    int code = process_wait(process, CLUSTER_PATIENCE_MS);
    ck_assert_msg(code == 0, "exit code %d\n%.1500s", code, process_errors(process));
    const char *output = process_output(process);
    ck_assert_msg(strstr(output, "mode 600") != NULL, "%s", output);
    ck_assert_msg(strstr(output, "it does not know the secret") != NULL, "%s", output);
    process_free(process);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attack_run");
    TCase *tests = tcase_create("attack_run");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_loop_test(tests, test_strangers_are_no_daemons, 0, 3);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
