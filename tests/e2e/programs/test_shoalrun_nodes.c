/* shoalrun on two nodes, which are addresses of this machine: each has one, and a daemon of its
 * own; a launcher's variables, or --hosts, say which nodes there are. */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/stop_file.h"
#include "tests/lib/suite.h"

#define NODES 2
#define SHOALRUN CLUSTER_BIN "shoalrun"
#define FIRST CLUSTER_BIN "shoal-first"

static char *directory;
static char home[600], place[600], port[64];

/* A word that differs from node to node has %d, which stands for the node's number. */
struct launch {
    const char *variables[5];
    const char *options[8];
};

static const struct launch launches[] = {
    {.variables = {"SLURM_JOB_ID=17", "SLURM_STEP_ID=0", "SLURM_PROCID=%d",
                   "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=127.0.0.[1-2]"},
     .options = {"-n", "2"}},
    {.variables = {"SLURM_JOB_ID=17", "SLURM_STEP_ID=0", "SLURM_PROCID=%d",
                   "SLURM_STEP_NODELIST=127.0.0.[1-2]", "SLURM_GPUS_ON_NODE=2"}},
    {.variables = {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=%d",
                   "OMPI_COMM_WORLD_LOCAL_SIZE=1"},
     .options = {"-n", "2", "--hosts", "127.0.0.1,127.0.0.2"}},
    {.variables = {"JOB_COMPLETION_INDEX=%d"},
     .options = {"-n", "2", "--hosts", "127.0.0.1,127.0.0.2"}},
    {.options = {"-n", "2", "--hosts", "127.0.0.1,127.0.0.2", "--node-rank", "%d"}},
};

/* Whether nobody of this machine has the three ports of a run. */
static bool ports_are_free(uint16_t first)
{
    bool all = true;
    for (uint16_t i = 0; all && i < 3; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_port = htons((uint16_t)(first + i))};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        all = bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
        close(fd);
    }
    return all;
}

/* The first of them, below those that the system gives out. */
static uint16_t run_port(void)
{
    uint16_t first = (uint16_t)(20000 + 3 * (getpid() % 3900));
    for (int i = 0; i < 100 && !ports_are_free(first); i++)
        first += 3;
    return first;
}

static void setup(void)
{
    directory = suite_make_directory();
    snprintf(home, sizeof(home), "HOME=%.500s", directory);
    snprintf(place, sizeof(place), "TMPDIR=%.500s", directory);
    snprintf(port, sizeof(port), "SHOAL_PORT=%u", run_port());
}

static void teardown(void)
{
    suite_remove_directory(directory);
}

static const char *of_node(char text[100], const char *format, int node)
{
    const char *percent = strstr(format, "%d");
    if (!percent)
        return format;
    snprintf(text, 100, "%.*s%d%s", (int)(percent - format), format, node, percent + 2);
    return text;
}

/* more: a variable on top; command: ends with NULL. */
static struct process *start(const struct launch *launch, int node, const char *more,
                             const char *const *command)
{
    char texts[13][100];
    const char *argv[24] = {SHOALRUN, "--timeout", "100"}, *environment[16] = {home, place, port};
    size_t words = 3, variables = 3;
    environment[variables++] = "SHOAL_TIMEOUT_MS=30000";
    for (size_t i = 0; i < 5 && launch->variables[i]; i++)
        environment[variables++] = of_node(texts[i], launch->variables[i], node);
    if (more)
        environment[variables++] = more;
    for (size_t i = 0; i < 8 && launch->options[i]; i++)
        argv[words++] = of_node(texts[5 + i], launch->options[i], node);
    argv[words++] = "--";
    for (size_t i = 0; command[i]; i++)
        argv[words++] = command[i];
    return process_start(&(struct process_start){.argv = argv, .environment = environment});
}

START_TEST(test_sums)
{
    const char *const command[] = {FIRST, NULL};
    struct process *nodes[NODES];
    for (int i = 0; i < NODES; i++)
        nodes[i] = start(&launches[_i], i, NULL, command);
    for (int i = 0; i < NODES; i++) {
        int code = process_wait(nodes[i], CLUSTER_PATIENCE_MS);
        ck_assert_msg(code == 0, "%d: %s", code, process_errors(nodes[i]));
        for (int rank = 2 * i; rank < 2 * i + 2; rank++) {
            char line[64];
            snprintf(line, sizeof(line), "rank %d of 4: 4 40 400 6\n", rank);
            ck_assert_msg(strstr(process_output(nodes[i]), line), "%s", process_output(nodes[i]));
        }
        process_free(nodes[i]);
    }
    /* The key alone stays: one of the user's, made by the node that came first. */
    struct process *left = process_run((const char *[]){"ls", "-A", directory, NULL});
    ck_assert_int_eq(process_wait(left, CLUSTER_PATIENCE_MS), 0);
    ck_assert_str_eq(process_output(left), ".shoal-key\n");
    process_free(left);
}
END_TEST

/* PyTorch's ranks find each other by what torchrun would set too. */
START_TEST(test_master)
{
    const char *const command[] = {"sh", "-c", "echo $RANK $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT",
                                   NULL};
    char expected[100];
    struct process *node = start(&launches[4], 1, NULL, command);
    ck_assert_int_eq(process_wait(node, CLUSTER_PATIENCE_MS), 0);
    snprintf(expected, sizeof(expected), "3 4 127.0.0.1:%d\n", atoi(strchr(port, '=') + 1) + 1);
    ck_assert_msg(strstr(process_output(node), expected), "%s", process_output(node));
    process_free(node);
}
END_TEST

/* One node's daemon cannot start: the ranks of both read why, long before their time is over. */
START_TEST(test_a_daemon_that_cannot_start)
{
    static const struct launch broken = {
        .options = {"--hosts", "127.0.0.[1-2]", "--node-rank", "%d", "--provider", "verbs"}};
    static const struct launch whole = {
        .options = {"--hosts", "127.0.0.[1-2]", "--node-rank", "%d", "--provider", "tcp"}};
    static const char said[] =
        "the daemon of node 127.0.0.2 cannot start: fabric provider \"verbs\" is not available";
    const char *const command[] = {FIRST, NULL};
    struct process *nodes[NODES] = {start(&whole, 0, NULL, command),
                                    start(&broken, 1, NULL, command)};
    for (int i = 0; i < NODES; i++) {
        ck_assert_int_eq(process_wait(nodes[i], CLUSTER_PATIENCE_MS), 1);
        ck_assert_msg(strstr(process_errors(nodes[i]), said), "%d: %s", i,
                      process_errors(nodes[i]));
        process_free(nodes[i]);
    }
}
END_TEST

/* A second run of one mark is refused at once, and says of what. */
START_TEST(test_mark_is_taken)
{
    const char *const waits[] = {"sh", "-c", "echo up; exec sleep 100", NULL};
    const char *const command[] = {"true", NULL};
    struct process *first = start(&launches[0], 0, NULL, waits);
    ck_assert(process_wait_text(first, "up", CLUSTER_PATIENCE_MS));
    struct process *second = start(&launches[0], 0, NULL, command);
    ck_assert_int_eq(process_wait(second, CLUSTER_PATIENCE_MS), 1);
    ck_assert_msg(strstr(process_errors(second), "is taken, by another run of this mark"), "%s",
                  process_errors(second));
    ck_assert_ptr_nonnull(strstr(process_errors(second), "slurm-17-0"));
    process_free(second);
    process_signal(first, SIGTERM);
    process_wait(first, CLUSTER_PATIENCE_MS);
    process_free(first);
}
END_TEST

#define RETIRES "this node has no more ranks"

/* A node whose ranks have ended serves those of the others: a new job of theirs, too. */
START_TEST(test_end_together)
{
    static const struct launch three = {
        .options = {"--hosts", "127.0.0.[1-3]", "--node-rank", "%d", "--grace", "0", "--verbose"}};
    static const char script[] =
        "\"$0\" || exit 1; [ $RANK = 0 ] && exit 0; until [ -e \"$STOP\" ]; do sleep 0.05; done; "
        "RANK=$((RANK-1)) WORLD_SIZE=2 SHOAL_JOB=later exec \"$0\"";
    const char *const command[] = {"sh", "-c", script, FIRST, NULL};
    struct process *nodes[3];
    struct stop_file stop;
    char variable[600];
    stop_file_create(&stop);
    snprintf(variable, sizeof(variable), "STOP=%s", stop.path);
    for (int i = 0; i < 3; i++)
        nodes[i] = start(&three, i, variable, command);
    ck_assert_msg(process_wait_text(nodes[0], RETIRES, CLUSTER_PATIENCE_MS), "%s",
                  process_errors(nodes[0]));
    stop_file_raise(&stop);
    for (int i = 2; i >= 0; i--) {
        int code = process_wait(nodes[i], CLUSTER_PATIENCE_MS);
        ck_assert_msg(code == 0, "%d: %s", code, process_errors(nodes[i]));
        char line[64];
        snprintf(line, sizeof(line), "rank %d of 2: ", i - 1);
        ck_assert_int_eq(strstr(process_output(nodes[i]), line) != NULL, i > 0);
        process_free(nodes[i]);
    }
    stop_file_free(&stop);
}
END_TEST

/* Whoever does not want to wait for the others sends a signal, or has given a time. */
START_TEST(test_end_alone)
{
    static const struct launch first = {
        .options = {"--hosts", "127.0.0.[1-2]", "--node-rank", "0", "--verbose"}};
    static const struct launch second = {
        .options = {"--hosts", "127.0.0.[1-2]", "--node-rank", "1", "--timeout", "2"}};
    const char *const command[] = {"true", NULL}, *const waits[] = {"sleep", "100", NULL};
    const char *const comes[] = {"sh", "-c", "WORLD_SIZE=1 RANK=0 exec \"$0\"", FIRST, NULL};
    struct process *other = start(&launches[4], 1, NULL, waits);
    struct process *one = start(&first, 0, NULL, comes);
    ck_assert_msg(process_wait_text(one, RETIRES, CLUSTER_PATIENCE_MS), "%s", process_errors(one));
    process_signal(one, SIGTERM);
    ck_assert_int_eq(process_wait(one, CLUSTER_PATIENCE_MS), 128 + SIGTERM);
    process_free(one);
    process_signal(other, SIGTERM);
    process_wait(other, CLUSTER_PATIENCE_MS);
    process_free(other);
    one = start(&second, 1, NULL, command);
    ck_assert_int_eq(process_wait(one, CLUSTER_PATIENCE_MS), 124);
    process_free(one);
}
END_TEST

/* Nodes that do not agree on the run end, both. */
START_TEST(test_disagreement)
{
    static const struct launch unlike[] = {
        {.options = {"-n", "1", "--hosts", "127.0.0.1,127.0.0.2", "--node-rank", "0"}},
        {.options = {"-n", "2", "--hosts", "127.0.0.1,127.0.0.2", "--node-rank", "1"}},
    };
    const char *const command[] = {FIRST, NULL};
    struct process *nodes[NODES];
    for (int i = 0; i < NODES; i++)
        nodes[i] = start(&unlike[i], i, NULL, command);
    for (int i = 0; i < NODES; i++) {
        ck_assert_int_ne(process_wait(nodes[i], CLUSTER_PATIENCE_MS), 0);
        ck_assert_msg(strstr(process_errors(nodes[i]), "world size"), "%s",
                      process_errors(nodes[i]));
        process_free(nodes[i]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalrun_nodes");
    TCase *tests = tcase_create("shoalrun_nodes");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_loop_test(tests, test_sums, 0, sizeof(launches) / sizeof(launches[0]));
    tcase_add_test(tests, test_master);
    tcase_add_test(tests, test_mark_is_taken);
    tcase_add_test(tests, test_a_daemon_that_cannot_start);
    tcase_add_test(tests, test_end_together);
    tcase_add_test(tests, test_end_alone);
    tcase_add_test(tests, test_disagreement);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
