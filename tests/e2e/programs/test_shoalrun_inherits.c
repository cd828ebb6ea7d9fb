/* shoalrun, whatever it inherits: signals, limits, descriptors, a place to write, an environment.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

/* A shell's word: the first processor that it may use. */
#define OWN_CPU "$(taskset -pc $$ | sed 's/.*: *//; s/[^0-9].*//')"

/* A shell runs it; $RUN is shoalrun with its options, and $DIR a folder of the test's. */
struct inherited {
    const char *script;
    const char *said; /* in its output or errors; NULL: nothing is asked for */
    int code;
    bool may_skip; /* by the exit code 77: no right to do that here */
};

static const struct inherited cases[] = {
    /* Without its children's ends shoalrun would wait for ever, and know no exit code. */
    {"trap '' CHLD; exec $RUN -n 2 -- sh -c 'exit 3'", "exit code 3", 3, false},
    {"trap '' CHLD; exec $RUN -n 2 -- $FIRST", "rank 1 of 2", 0, false},
    {"exec env --block-signal $RUN -n 2 -- $FIRST", "rank 1 of 2", 0, false},
    {"exec env --ignore-signal $RUN -n 2 -- $FIRST", "rank 1 of 2", 0, false},
    {"exec env --ignore-signal $RUN -n 1 -- sh -c 'exit 4'", NULL, 4, false},
    /* A rank gets what it would have without shoalrun. */
    {"umask 027; exec $RUN -n 1 -- sh -c umask", "0027", 0, false},
    {"umask 0777; exec $RUN -n 2 -- $FIRST", "rank 1 of 2", 0, false},
    {"exec $RUN -n 2 -- $FIRST <&-", "rank 1 of 2", 0, false},
    {"exec $RUN -n 2 -- $FIRST <&- 2>&-", "rank 1 of 2", 0, false},
    {"exec $RUN -n 2 -- $FIRST <&- >&- 2>&-", NULL, 0, false},
    {"exec $RUN -n 1 -- sh -c 'exit 5' <&- >&-", NULL, 5, false},
    {"mkdir $DIR/gone; cd $DIR/gone; rmdir $DIR/gone; exec $RUN -n 2 -- $FIRST", "rank 1 of 2", 0,
     false},
    {"exec env -i $RUN -n 2 -- $FIRST", "rank 1 of 2", 0, false},
    {"PATH=; exec $RUN -n 2 -- $FIRST", "rank 1 of 2", 0, false},
    {"ulimit -n 1024; exec $RUN -n 2 -- $FIRST", "rank 1 of 2", 0, false},
    {"ulimit -n 64; exec $RUN -n 2 -- $FIRST", "rank 1 of 2", 0, false},
    /* The ranks say why their daemon has not started. */
    {"ulimit -n 48; exec $RUN -n 2 -- $FIRST", "went away; its log ends with: limits.connections",
     1, false},
    {"exec $RUN -n 2 --provider nosuch -- $FIRST",
     "json: /fabric/provider: got \"nosuch\", must be", 1, false},
    {"ulimit -c 0; ulimit -s 1024; exec $RUN -n 2 -- $FIRST", "rank 1 of 2", 0, false},
    {"exec taskset -c " OWN_CPU " $RUN -n 2 -- $FIRST", "rank 1 of 2", 0, false},
    /* A TMPDIR that is wrong is named, and the run goes on. */
    {"TMPDIR=/nowhere; exec $RUN -n 2 -- $FIRST",
     "cannot make a folder in /nowhere: No such file or directory; using /tmp", 0, false},
    {"TMPDIR=relative; exec $RUN -n 1 -- $FIRST", "\"relative\" does not begin with /", 0, false},
    {"unshare -m true || exit 77; exec unshare -m sh -c 'mount -t tmpfs -o size=4k,nr_inodes=99 "
     "none $DIR && export TMPDIR=$DIR && exec $RUN -n 2 -- $FIRST'",
     "No space left on device; using /tmp", 0, true},
    {"unshare -m true || exit 77; exec unshare -m sh -c 'mount -t tmpfs -o ro none $DIR && export "
     "TMPDIR=$DIR && exec $RUN -n 2 -- $FIRST'",
     "Read-only file system; using /tmp", 0, true},
    {"unshare -m true || exit 77; exec unshare -m sh -c 'mount -t tmpfs -o ro none /tmp && exec "
     "env "
     "-u TMPDIR $RUN -n 2 -- $FIRST'",
     "Read-only file system; using /dev/shm", 0, true},
    {"unshare -m true || exit 77; exec unshare -m sh -c 'mount -t tmpfs -o ro none /tmp && mount "
     "-t "
     "tmpfs -o ro none /dev/shm && exec env -u TMPDIR $RUN -n 2 -- $FIRST'",
     "no place for a folder (TMPDIR): cannot make a folder in /tmp: Read-only file system", 1,
     true},
    /* A name is no path. */
    {"exec $RUN -n 2 --job ../a/b -- $FIRST", "rank 1 of 2", 0, false},
    {"SHOAL_JOB=mine; export SHOAL_JOB; exec $RUN -n 1 -- sh -c 'echo job $SHOAL_JOB'", "job mine",
     0, false},
    {"SHOAL_JOB=mine; export SHOAL_JOB; exec $RUN -n 1 --job other -- sh -c 'echo job $SHOAL_JOB'",
     "job other", 0, false},
    /* A run inside of a run is another one. */
    {"exec $RUN -n 1 --job outer -- sh -c '$RUN -n 1 -- sh -c \"echo inner \\$SHOAL_JOB\"'",
     "inner shoalrun-", 0, false},
    {"SHOAL_JOB=$(printf %64s | tr ' ' x); export SHOAL_JOB; exec $RUN -n 1 -- true",
     "SHOAL_JOB: must have 1 to 63 bytes", 2, false},
};

START_TEST(test_inherited)
{
    const struct inherited *row = &cases[_i];
    char *directory = suite_make_directory();
    char variables[4][600];
    snprintf(variables[0], 600, "RUN=" CLUSTER_BIN "shoalrun --nodes 1 --timeout 100");
    snprintf(variables[1], 600, "FIRST=" CLUSTER_BIN "shoal-first");
    snprintf(variables[2], 600, "DIR=%.500s", directory);
    snprintf(variables[3], 600, "TMPDIR=%.500s", directory);
    const char *environment[] = {variables[0], variables[1], variables[2], variables[3], NULL};
    const char *argv[] = {"sh", "-c", row->script, NULL};
    struct process *process =
        process_start(&(struct process_start){.argv = argv, .environment = environment});
    int code = process_wait(process, CLUSTER_PATIENCE_MS);
    const char *output = process_output(process), *errors = process_errors(process);
    if (row->may_skip && code == 77) {
        suite_skip("test_inherited", "no right to mount: %s", row->script);
    } else {
        ck_assert_msg(code == row->code, "%s: %d\n%s\n%s", row->script, code, output, errors);
        ck_assert_msg(!row->said || strstr(output, row->said) || strstr(errors, row->said),
                      "%s:\n%s\n%s", row->script, output, errors);
        ck_assert_msg(!strstr(errors, "do not end at SIGTERM"), "%s: %s", row->script, errors);
    }
    process_free(process);
    suite_remove_directory(directory);
}
END_TEST

/* The daemon of a rank that is bound to one core has its node's, whatever that was; and what it
 * made is gone with the last who holds the pipe. */
static const char serving[] =
    "mkfifo $DIR/in $DIR/out || exit 1\n"
    "taskset -c " OWN_CPU " $SERVE 127.0.0.1 <$DIR/in >$DIR/out &\n"
    "exec 3>$DIR/in 4<$DIR/out\n"
    "read -r port <&4; read -r folder <&4; exec 5>$folder/alive\n"
    "printf '%s\\n' 0123456789012345678901234567890123456789012 \"127.0.0.1 $port here\" >&3\n"
    "read -r word <&4; echo $word\n"
    "SHOAL_SOCKET=$folder/node0.sock WORLD_SIZE=1 RANK=0 $FIRST\n"
    "pid=$($CTL --socket $folder/node0.sock status --json | grep -o '\"pid\":[ 0-9]*' |\n"
    "      head -n 1 | tr -dc 0-9)\n"
    "grep Cpus_allowed: /proc/$pid/status /proc/$(cut -d ' ' -f 4 /proc/$pid/stat)/status |\n"
    "    cut -f 2 | tr '\\n' ' '\n"
    "taskset -c 0-$(($(getconf _NPROCESSORS_CONF) - 1)) grep Cpus_allowed: /proc/self/status |\n"
    "    cut -f 2\n"
    "exec 5>&- 3>&- 4<&-\n"
    "while [ -e $folder ]; do sleep 0.05; done; echo gone\n";

START_TEST(test_served)
{
    char *directory = suite_make_directory();
    char variables[2][600], daemon[200] = "", server[200] = "x", own[200] = "y";
    snprintf(variables[0], 600, "DIR=%.500s", directory);
    snprintf(variables[1], 600, "TMPDIR=%.500s", directory);
    const char *environment[] = {variables[0],
                                 variables[1],
                                 "SERVE=" CLUSTER_BIN "shoalrun --serve",
                                 "FIRST=" CLUSTER_BIN "shoal-first",
                                 "CTL=" CLUSTER_BIN "shoalctl",
                                 NULL};
    const char *argv[] = {"sh", "-c", serving, NULL};
    struct process *process =
        process_start(&(struct process_start){.argv = argv, .environment = environment});
    int code = process_wait(process, CLUSTER_PATIENCE_MS);
    const char *output = process_output(process);
    ck_assert_msg(code == 0, "%d\n%s\n%s", code, output, process_errors(process));
    ck_assert_msg(strstr(output, "started\nrank 0 of 1") && strstr(output, "gone\n"), "%s", output);
    const char *line = strchr(strstr(output, "rank 0"), '\n');
    ck_assert_int_eq(sscanf(line, "%199s %199s %199s", daemon, server, own), 3);
    ck_assert_str_eq(daemon, own);
    ck_assert_str_eq(server, own);
    process_free(process);
    suite_remove_directory(directory);
}
END_TEST

/* `--serve` answers wrong input with one line that says what is wrong, and leaves nothing. */
START_TEST(test_serving_refused)
{
    static const char *const rows[][2] = {
        {"printf '' | $SERVE nowhere", "error -1 \"nowhere\" is no address"},
        {"printf '' | $SERVE 192.0.2.1", "error -9 cannot listen on 192.0.2.1"},
        {"printf 'secret\\n127.0.0.1\\n' | $SERVE 127.0.0.1", "error -7 line 2 of the input"},
        {"printf 'secret\\n127.0.0.1 x here\\n' | $SERVE 127.0.0.1", "error -7"},
        {"printf 'secret\\n127.0.0.1 70000 here\\n' | $SERVE 127.0.0.1", "error -7"},
        {"printf 'secret\\n127.0.0.1 7000\\n' | $SERVE 127.0.0.1", "error -7"},
        {"printf '%01000d\\n' 0 | $SERVE 127.0.0.1", "error -7 a line of the input is too long"},
    };
    char *directory = suite_make_directory();
    char variable[600];
    snprintf(variable, sizeof(variable), "TMPDIR=%.500s", directory);
    const char *environment[] = {variable, "SERVE=" CLUSTER_BIN "shoalrun --serve", NULL};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        /* cat ends with the process that was left behind, by when its folder is gone or nearly. */
        char script[400];
        snprintf(script, sizeof(script),
                 "{ %s; } | cat; while ls $TMPDIR | grep -q .; do sleep "
                 "0.05; done",
                 rows[i][0]);
        const char *argv[] = {"sh", "-c", script, NULL};
        struct process *process =
            process_start(&(struct process_start){.argv = argv, .environment = environment});
        int code = process_wait(process, CLUSTER_PATIENCE_MS);
        ck_assert_msg(code == 0 && strstr(process_output(process), rows[i][1]), "%s: %d %s",
                      rows[i][0], code, process_output(process));
        process_free(process);
    }
    suite_remove_directory(directory);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalrun_inherits");
    TCase *tests = tcase_create("shoalrun_inherits");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, test_inherited, 0, sizeof(cases) / sizeof(cases[0]));
    tcase_add_test(tests, test_served);
    tcase_add_test(tests, test_serving_refused);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
