/* Two network namespaces with two virtual cables, one for control and one for the fabric. The
 * fabric's stops carrying packets, one way or both, and nothing else tells: the ranks hear which
 * link it is, and when it carries them again the daemons find each other. Needs the right to make
 * namespaces. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define PORT 7433
#define PEER_MS "2000"
#define SILENCE "no sign of life for " PEER_MS " ms on the fabric link between "
/* Far below the ranks' own limit of CLUSTER_PATIENCE_MS, for a machine that is busy with tests. */
#define HEARD_MS 30000

struct side {
    char config[300], socket_path[300];
    struct process *daemon;
};

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

/* Cable 8 carries control, cable 9 the fabric: networks 10.231.8.0 and 10.231.9.0. */
static bool cable_make(int cable)
{
    char command[256];
    bool done = IP("-n %s link add shoal%d type veth peer name shoal%d netns %s", names[0], cable,
                   cable, names[1]);
    for (int i = 0; i < 2 && done; i++)
        done = IP("-n %s addr add 10.231.%d.%d/24 dev shoal%d", names[i], cable, i + 1, cable) &&
               IP("-n %s link set shoal%d up", names[i], cable);
    return done;
}

static bool namespaces_make(void)
{
    char command[256];
    for (int i = 0; i < 2; i++) {
        if (!IP("netns add %s", names[i]) || !IP("-n %s link set lo up", names[i])) {
            reason = "no right to make network namespaces, or no ip command";
            return false;
        }
    }
    reason = "no virtual Ethernet";
    return cable_make(8) && cable_make(9);
}

/* Unchecked: in the parent, so that the namespaces go also when a test has failed. */
static void setup(void)
{
    directory = suite_make_directory();
    for (int i = 0; i < 2; i++)
        snprintf(names[i], sizeof(names[i]), "shoal-%d-%c", (int)getpid(), 'x' + i);
    ready = namespaces_make();
}

static void teardown(void)
{
    char command[256];
    for (int i = 0; i < 2; i++)
        IP("netns del %s", names[i]);
    suite_remove_directory(directory);
}

static void file_write(const char *path, const char *text)
{
    unlink(path);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    ck_assert_int_eq(chmod(path, 0600), 0);
}

static void side_start(struct side *side, int index, const char *provider)
{
    char text[2048], secret[300];
    snprintf(side->config, sizeof(side->config), "%.200s/%c.json", directory, 'a' + index);
    snprintf(side->socket_path, sizeof(side->socket_path), "%.80s/%c.sock", directory, 'a' + index);
    snprintf(secret, sizeof(secret), "%.200s/%c.secret", directory, 'a' + index);
    file_write(secret, "0123456789abcdef0123456789abcdef0123456789abcdef");
    snprintf(text, sizeof(text),
             "{\"node\":\"%c\",\"servers\":[{\"name\":\"a\",\"address\":\"10.231.8.1:%d\"},"
             "{\"name\":\"b\",\"address\":\"10.231.8.2:%d\"}],\"socket\":{\"path\":\"%s\"},"
             "\"listen\":{\"address\":\"10.231.8.%d\"},\"secret_file\":\"%s\","
             "\"fabric\":{\"address\":\"10.231.9.%d\",\"provider\":\"%s\"},"
             "\"timeouts\":{\"peer_ms\":" PEER_MS "}}",
             'a' + index, PORT, PORT, side->socket_path, index + 1, secret, index + 1, provider);
    file_write(side->config, text);
    const char *argv[] = {"ip",       "netns",      "exec", names[index], CLUSTER_BIN "shoald",
                          "--config", side->config, NULL};
    const char *environment[] = {"IPATH_NO_BACKTRACE=1", "HFI_NO_BACKTRACE=1", NULL};
    struct process_start start = {.argv = argv, .environment = environment};
    side->daemon = process_start(&start);
}

static struct process *rank_start(const struct side *side, const char *job, uint32_t rank,
                                  const char *const *argv)
{
    char rank_text[32], socket_text[400], job_text[80];
    snprintf(rank_text, sizeof(rank_text), "RANK=%u", rank);
    snprintf(job_text, sizeof(job_text), "SHOAL_JOB=%s", job);
    snprintf(socket_text, sizeof(socket_text), "SHOAL_SOCKET=%s", side->socket_path);
    const char *environment[] = {rank_text, socket_text, job_text, "WORLD_SIZE=4", NULL, NULL};
    environment[4] = "SHOAL_TIMEOUT_MS=60000";
    struct process_start start = {.argv = argv, .environment = environment};
    return process_start(&start);
}

/* Bit 1: what a sends to b is dropped where it leaves; bit 2: what b sends to a. */
static void cable_cut(uint32_t ways, bool cut)
{
    char command[256];
    for (int i = 0; i < 2; i++) {
        if (ways & 1u << i)
            ck_assert(IP("-n %s route %s blackhole 10.231.9.%d/32", names[i], cut ? "add" : "del",
                         2 - i));
    }
}

static void ranks_start(const struct side sides[2], const char *job, const char *const *argv,
                        struct process *workers[4])
{
    for (uint32_t rank = 0; rank < 4; rank++)
        workers[rank] = rank_start(&sides[rank / 2], job, rank, argv);
}

/* One end may find out first, close its side, and be heard where that way is free. */
static void ranks_hear(struct process *workers[4])
{
    for (int rank = 0; rank < 4; rank++) {
        int code = process_wait(workers[rank], HEARD_MS);
        const char *text = process_output(workers[rank]);
        ck_assert_msg(code == 7 && strstr(text, " on the fabric link between ") &&
                          strstr(text, "10.231.9.1:") && strstr(text, "10.231.9.2:") &&
                          strstr(text, "a (10.231") && strstr(text, "b (10.231"),
                      "rank %d, exit code %d: %.900s", rank, code, text);
        process_free(workers[rank]);
    }
}

static void data_link(const char *provider, const char *mode, uint32_t ways)
{
    struct side sides[2];
    struct process *workers[4];
    if (!ready) {
        suite_skip("test_data_link", "%s", reason);
        return;
    }
    for (int i = 0; i < 2; i++)
        side_start(&sides[i], i, provider);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(wait_until(socket_answers, sides[i].socket_path, CLUSTER_PATIENCE_MS), "%s",
                      process_errors(sides[i].daemon));
    const char *argv[] = {CLUSTER_HELPER, mode, "/nonexistent", NULL};
    ranks_start(sides, "cut", argv, workers);
    for (int rank = 0; rank < 4; rank++)
        ck_assert_msg(process_wait_text(workers[rank], "running", CLUSTER_PATIENCE_MS),
                      "%s\nof rank 2: %.900s\nof a: %.3000s\nof b: %.3000s",
                      process_output(workers[rank]), process_output(workers[2]),
                      process_errors(sides[0].daemon), process_errors(sides[1].daemon));
    cable_cut(ways, true);
    ranks_hear(workers);
    ck_assert(process_wait_text(sides[0].daemon, SILENCE, 0) ||
              process_wait_text(sides[1].daemon, SILENCE, 0));
    cable_cut(ways, false);
    const char *once[] = {CLUSTER_HELPER, "once", NULL};
    ranks_start(sides, "again", once, workers);
    ck_assert_int_eq(cluster_job_end(workers, 4), 0);
    for (int i = 0; i < 2; i++)
        process_signal(sides[i].daemon, SIGTERM);
    for (int i = 0; i < 2; i++) {
        int code = process_wait(sides[i].daemon, CLUSTER_PATIENCE_MS);
        ck_assert_msg(code == 0, "exit code %d: %.1500s", code, process_errors(sides[i].daemon));
        process_free(sides[i].daemon);
    }
}

START_TEST(test_data_link_cut)
{
    data_link("tcp", "loop", 1 + (uint32_t)_i);
}
END_TEST

START_TEST(test_data_link_cut_datagrams)
{
    data_link("tcp;ofi_rxm", "loop", 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("data_link");
    TCase *tests = tcase_create("data_link");
    tcase_set_timeout(tests, 300);
    tcase_add_unchecked_fixture(tests, setup, teardown);
    tcase_add_loop_test(tests, test_data_link_cut, 0, 3);
    tcase_add_test(tests, test_data_link_cut_datagrams);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
