/* Two network namespaces joined by a virtual cable, a daemon in each, and a secret: what two
 * machines would be. Needs the right to make namespaces. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/perf_run.h"

#define SECRET "0123456789abcdef0123456789abcdef0123456789abcdef"
#define PORT 7432

static char *directory;
static char names[2][32];
static bool ready;
static const char *reason = "";

/* One command of ip(8); whether it succeeded. */
static bool ip(const char *words)
{
    char line[300];
    snprintf(line, sizeof(line), "ip %s", words);
    struct process *process = process_run_words(line);
    bool done = process_wait(process, CLUSTER_PATIENCE_MS) == 0;
    process_free(process);
    return done;
}

#define IP(...) (snprintf(command, sizeof(command), __VA_ARGS__), ip(command))

static bool namespaces_make(void)
{
    char command[256];
    int pid = (int)getpid();
    if (!IP("netns add %s", names[0]) || !IP("netns add %s", names[1])) {
        reason = "no right to make network namespaces, or no ip command";
        return false;
    }
    /* The ends are made inside their namespaces, so that no name is taken outside. */
    if (!IP("-n %s link add shoal%d type veth peer name shoal%d netns %s", names[0], pid % 100000,
            pid % 100000, names[1])) {
        reason = "no virtual Ethernet";
        return false;
    }
    bool done = true;
    for (int i = 0; i < 2; i++)
        done = done &&
               IP("-n %s addr add 10.231.7.%d/24 dev shoal%d", names[i], i + 1, pid % 100000) &&
               IP("-n %s link set shoal%d up", names[i], pid % 100000) &&
               IP("-n %s link set lo up", names[i]);
    if (!done)
        reason = "the namespaces cannot be given addresses";
    return done;
}

/* Unchecked: in the parent, so that the namespaces go also when a test has failed. */
static void setup(void)
{
    directory = suite_make_directory();
    for (int i = 0; i < 2; i++)
        snprintf(names[i], sizeof(names[i]), "shoal-%d-%c", (int)getpid(), 'a' + i);
    ready = namespaces_make();
}

static void teardown(void)
{
    char command[256];
    for (int i = 0; i < 2; i++)
        IP("netns del %s", names[i]);
    suite_remove_directory(directory);
}

static void file_write(const char *path, const char *text, mode_t mode)
{
    unlink(path);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    ck_assert_int_eq(chmod(path, mode), 0);
}

struct side {
    char config[300], secret[300], socket_path[300];
    struct process *daemon;
};

static void side_start(struct side *side, int index, const char *secret)
{
    char text[2048];
    snprintf(side->config, sizeof(side->config), "%.200s/%c.json", directory, 'a' + index);
    snprintf(side->secret, sizeof(side->secret), "%.200s/%c.secret", directory, 'a' + index);
    snprintf(side->socket_path, sizeof(side->socket_path), "%.80s/%c.sock", directory, 'a' + index);
    file_write(side->secret, secret, 0600);
    snprintf(text, sizeof(text),
             "{\"node\":\"%c\",\"servers\":[{\"name\":\"a\",\"address\":\"10.231.7.1:%d\"},"
             "{\"name\":\"b\",\"address\":\"10.231.7.2:%d\"}],\"socket\":{\"path\":\"%s\"},"
             "\"listen\":{\"address\":\"10.231.7.%d\"},\"secret_file\":\"%s\"}",
             'a' + index, PORT, PORT, side->socket_path, index + 1, side->secret);
    file_write(side->config, text, 0600);
    const char *argv[] = {"ip",       "netns",      "exec", names[index], CLUSTER_BIN "shoald",
                          "--config", side->config, NULL};
    const char *environment[] = {"IPATH_NO_BACKTRACE=1", "HFI_NO_BACKTRACE=1", NULL};
    struct process_start start = {.argv = argv, .environment = environment};
    side->daemon = process_start(&start);
}

static void sides_start(struct side sides[2], const char *secret, const char *other)
{
    for (int i = 0; i < 2; i++)
        side_start(&sides[i], i, i ? other : secret);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(wait_until(socket_answers, sides[i].socket_path, CLUSTER_PATIENCE_MS), "%s",
                      process_errors(sides[i].daemon));
}

static void sides_stop(struct side sides[2])
{
    for (int i = 0; i < 2; i++)
        process_signal(sides[i].daemon, SIGTERM);
    for (int i = 0; i < 2; i++) {
        int code = process_wait(sides[i].daemon, CLUSTER_PATIENCE_MS);
        ck_assert_msg(code == 0, "exit code %d: %.1500s", code, process_errors(sides[i].daemon));
        process_free(sides[i].daemon);
    }
}

static struct process *rank_start(const struct side *side, uint32_t rank, const char *timeout,
                                  const char *const *argv)
{
    char rank_text[32], socket_text[400];
    snprintf(rank_text, sizeof(rank_text), "RANK=%u", rank);
    snprintf(socket_text, sizeof(socket_text), "SHOAL_SOCKET=%s", side->socket_path);
    const char *environment[] = {rank_text,       socket_text, "WORLD_SIZE=4",
                                 "SHOAL_JOB=far", timeout,     NULL};
    struct process_start start = {.argv = argv, .environment = environment};
    return process_start(&start);
}

START_TEST(test_shoalperf_across)
{
    if (!ready) {
        suite_skip("test_shoalperf_across", "%s", reason);
        return;
    }
    struct side sides[2];
    struct process *workers[4];
    sides_start(sides, SECRET, SECRET "\n");
    const char *argv[] = {CLUSTER_BIN "shoalperf",
                          "all_reduce",
                          "--count",
                          "1,3,1000003",
                          "-d",
                          "all",
                          "-w",
                          "1",
                          "-n",
                          "1",
                          "--json",
                          NULL};
    for (uint32_t rank = 0; rank < 4; rank++)
        workers[rank] = rank_start(&sides[rank / 2], rank, "SHOAL_TIMEOUT_MS=60000", argv);
    for (int rank = 0; rank < 4; rank++) {
        int code = process_wait(workers[rank], 2 * CLUSTER_PATIENCE_MS);
        ck_assert_msg(code == 0, "rank %d, exit code %d: %.1000s", rank, code,
                      process_errors(workers[rank]));
    }
    int rows = 0;
    for (const char *at = process_output(workers[0]); (at = strstr(at, "\"wrong\":0}")); at++)
        rows++;
    ck_assert_int_eq(rows, 3 * PERF_TYPES);
    for (int rank = 0; rank < 4; rank++)
        process_free(workers[rank]);
    sides_stop(sides);
}
END_TEST

/* Another secret: no job, and a reason in both logs. */
START_TEST(test_wrong_secret)
{
    if (!ready) {
        suite_skip("test_wrong_secret", "%s", reason);
        return;
    }
    struct side sides[2];
    sides_start(sides, SECRET, "another" SECRET);
    /* By the one that was called first. */
    bool said = false;
    for (int waited_ms = 0; waited_ms < CLUSTER_PATIENCE_MS && !said; waited_ms += 200)
        said = process_wait_text(sides[0].daemon, "secret", 100) ||
               process_wait_text(sides[1].daemon, "secret", 100);
    ck_assert(said);
    struct process *workers[4];
    const char *argv[] = {CLUSTER_HELPER, "once", NULL};
    for (uint32_t rank = 0; rank < 4; rank++)
        workers[rank] = rank_start(&sides[rank / 2], rank, "SHOAL_TIMEOUT_MS=1500", argv);
    for (int rank = 0; rank < 4; rank++) {
        ck_assert_int_eq(process_wait(workers[rank], CLUSTER_PATIENCE_MS), 7);
        process_free(workers[rank]);
    }
    sides_stop(sides);
}
END_TEST

/* The cable is cut: nothing arrives any more, not even a reset. Everybody hears of it. */
START_TEST(test_cable_cut)
{
    if (!ready) {
        suite_skip("test_cable_cut", "%s", reason);
        return;
    }
    char command[256];
    struct side sides[2];
    struct process *workers[4];
    sides_start(sides, SECRET, SECRET);
    const char *argv[] = {CLUSTER_HELPER, "loop", "/nonexistent", NULL};
    for (uint32_t rank = 0; rank < 4; rank++)
        workers[rank] = rank_start(&sides[rank / 2], rank, "SHOAL_TIMEOUT_MS=60000", argv);
    for (int rank = 0; rank < 4; rank++)
        ck_assert(process_wait_text(workers[rank], "running", CLUSTER_PATIENCE_MS));
    int name = (int)getppid() % 100000;
    ck_assert(IP("-n %s link set shoal%d down", names[1], name));
    for (int rank = 0; rank < 4; rank++) {
        ck_assert_int_eq(process_wait(workers[rank], 30000), 7);
        const char *other = rank < 2 ? "node b" : "node a";
        ck_assert_msg(strstr(process_output(workers[rank]), other) != NULL, "no \"%s\" in %.500s",
                      other, process_output(workers[rank]));
        process_free(workers[rank]);
    }
    ck_assert(IP("-n %s link set shoal%d up", names[1], name));
    sides_stop(sides);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("namespaces");
    TCase *tests = tcase_create("namespaces");
    tcase_set_timeout(tests, 300);
    tcase_add_unchecked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_shoalperf_across);
    tcase_add_test(tests, test_wrong_secret);
    tcase_add_test(tests, test_cable_cut);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
