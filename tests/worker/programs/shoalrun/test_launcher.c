#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/env.h"
#include "common/config/config.h"
#include "tests/lib/suite.h"
#include "worker/programs/shoalrun/launcher.h"
#include "worker/programs/shoalrun/output.h"

#define WORDS(...) ((char **)(const char *[]){"shoalrun", __VA_ARGS__, NULL})
#define PARSE(options, error, ...) parse(options, error, WORDS(__VA_ARGS__))

static int parse(struct launch_options *options, struct error *error, char **words)
{
    int count = 0;
    while (words[count])
        count++;
    /* The options point into the words, whose compound literal ends with its assertion. */
    static char *kept[32];
    ck_assert_int_lt(count, 32);
    memcpy(kept, words, (size_t)(count + 1) * sizeof(*kept));
    return launch_options_parse(count, kept, options, error);
}

START_TEST(test_options_all)
{
    struct launch_options options;
    struct error error = {0};
    ck_assert_int_eq(PARSE(&options, &error, "--nodes", "3", "-n", "2", "--cpu-nodes=1", "--job",
                           "train", "--provider", "tcp", "--config", "x.json", "--timeout", "60",
                           "--grace", "4", "--as", "gloo", "--verbose", "--page", "--tag-output",
                           "--", "prog", "-n", "--x"),
                     0);
    ck_assert_uint_eq(options.nodes, 3);
    ck_assert_uint_eq(options.ranks_per_node, 2);
    ck_assert_uint_eq(options.cpu_nodes, 1);
    ck_assert_str_eq(options.job, "train");
    ck_assert_str_eq(options.provider, "tcp");
    ck_assert_str_eq(options.in_place_of, "gloo");
    ck_assert_str_eq(options.config_path, "x.json");
    ck_assert_uint_eq(options.timeout_s, 60);
    ck_assert_uint_eq(options.grace_s, 4);
    ck_assert(options.verbose && options.page && options.tag_output && !options.help);
    ck_assert_str_eq(options.command[0], "prog");
    ck_assert_str_eq(options.command[1], "-n");
    ck_assert_str_eq(options.command[2], "--x");
    ck_assert_ptr_null(options.command[3]);
    ck_assert_uint_eq(launch_world_size(&options), 6);
}
END_TEST

START_TEST(test_options_end_at_the_command)
{
    struct launch_options options;
    struct error error = {0};
    ck_assert_int_eq(PARSE(&options, &error, "-n", "4", "prog", "--verbose"), 0);
    ck_assert(!options.verbose);
    ck_assert_ptr_null(options.in_place_of);
    ck_assert_str_eq(options.command[1], "--verbose");
    ck_assert_uint_eq(options.nodes, 0);
    ck_assert_uint_eq(options.grace_s, 10);
    ck_assert_uint_eq(launch_world_size(&options), 4);
}
END_TEST

/* The daemons of one machine are few, and a run has many machines. */
START_TEST(test_options_of_nodes)
{
    struct launch_options options;
    struct error error = {0};
    ck_assert_int_eq(
        PARSE(&options, &error, "--serve", "127.0.0.1", "--nodes", "1024", "--node-rank", "1023"),
        0);
    ck_assert_uint_eq(options.nodes, 1024);
    ck_assert_int_eq(PARSE(&options, &error, "--nodes", "128", "prog"), 0);
    ck_assert_int_eq(PARSE(&options, &error, "--nodes", "129", "prog"), ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "129 daemons, at most 128"));
}
END_TEST

static void refuse(char **words, const char *expected)
{
    struct launch_options options;
    memset(&options, 0x5a, sizeof(options));
    struct launch_options before = options;
    struct error error = {0};
    ck_assert_int_eq(parse(&options, &error, words), ERR_INVALID);
    ck_assert_msg(strstr(error.text, expected), "\"%s\" lacks \"%s\"", error.text, expected);
    ck_assert_mem_eq(&options, &before, sizeof(options));
}

START_TEST(test_options_refused)
{
    refuse(WORDS("--hosts", "a,b", "--nodes", "2", "prog"), "--hosts names machines");
    refuse(WORDS("--node-rank", "1024", "prog"), "--node-rank: got \"1024\"");
    refuse(WORDS("-n", "2"), "command to run is missing");
    refuse(WORDS("-n", "0", "prog"), "-n: got \"0\", must be a number from 1 to 4096");
    refuse(WORDS("-n", "2x", "prog"), "-n: got \"2x\"");
    refuse(WORDS("-n", "-2", "prog"), "-n: got \"-2\"");
    refuse(WORDS("-n", " 2", "prog"), "-n: got \" 2\"");
    refuse(WORDS("-n", "99999999999999999999", "prog"), "-n: got \"999");
    refuse(WORDS("-n"), "-n needs a value");
    refuse(WORDS("--nodes"), "--nodes needs a value");
    refuse(WORDS("--bogus", "-n", "1", "prog"), "unknown option --bogus");
    refuse(WORDS("-n", "1", "--nodes", "1025", "prog"), "--nodes: got \"1025\"");
    refuse(WORDS("-n", "1", "--nodes", "125", "--cpu-nodes", "4", "prog"), "129 daemons");
    refuse(WORDS("-n", "4096", "--nodes", "2", "prog"), "8192 ranks");
    refuse(WORDS("-n", "1", "--job", "", "prog"), "--job");
    refuse(WORDS("-n", "1", "--job",
                 "0123456789012345678901234567890123456789012345678901234567890123", "prog"),
           "--job: must have 1 to 63 bytes");
    refuse(WORDS("-n", "1", "--as", "nccl", "prog"),
           "--as: 'nccl' is not allowed, only gloo and jax");
    refuse(WORDS("-n", "1", "--as", "", "prog"), "--as: '' is not allowed, only gloo");
    refuse(WORDS("--print", "mpi"), "--print: 'mpi' is not allowed, only jax");
    refuse(WORDS("--print"), "--print needs a value");
    refuse(WORDS("-n", "1", "--socket", "/s", "--nodes", "1", "prog"), "--socket uses a running");
    refuse(WORDS("-n", "1", "--socket", "/s", "--provider", "tcp", "prog"), "--provider");
}
END_TEST

START_TEST(test_options_help)
{
    struct launch_options options;
    struct error error = {0};
    ck_assert_int_eq(PARSE(&options, &error, "--help"), 0);
    ck_assert(options.help);
    ck_assert_int_eq(PARSE(&options, &error, "--print", "jax"), 0);
    ck_assert(options.print && !options.help);
    ck_assert_int_eq(PARSE(&options, &error, "--as", "jax", "prog"), 0);
    ck_assert_str_eq(options.in_place_of, "jax");
    ck_assert_int_eq(PARSE(&options, &error, "--version"), 0);
    ck_assert(options.version);
    ck_assert_ptr_nonnull(strstr(launch_usage(), "--cpu-nodes"));
}
END_TEST

START_TEST(test_mode)
{
    struct launch_options options = {0};
    const char *path;
    ck_assert_int_eq(launch_mode(&options, NULL, &path), LAUNCH_IF_ANSWERS);
    ck_assert_str_eq(path, SHOAL_DEFAULT_SOCKET);
    ck_assert_int_eq(launch_mode(&options, "", &path), LAUNCH_IF_ANSWERS);
    ck_assert_int_eq(launch_mode(&options, "/a", &path), LAUNCH_GIVEN);
    ck_assert_str_eq(path, "/a");
    options.socket_path = "/b";
    ck_assert_int_eq(launch_mode(&options, "/a", &path), LAUNCH_GIVEN);
    ck_assert_str_eq(path, "/b");
    options = (struct launch_options){.nodes = 1};
    ck_assert_int_eq(launch_mode(&options, "/a", &path), LAUNCH_EMBEDDED);
    ck_assert_ptr_null(path);
    options = (struct launch_options){.provider = "tcp"};
    ck_assert_int_eq(launch_mode(&options, NULL, &path), LAUNCH_EMBEDDED);
    options = (struct launch_options){.cpu_nodes = 1};
    ck_assert_int_eq(launch_mode(&options, NULL, &path), LAUNCH_EMBEDDED);
    options = (struct launch_options){.config_path = "x"};
    ck_assert_int_eq(launch_mode(&options, NULL, &path), LAUNCH_EMBEDDED);
}
END_TEST

/* The second of three machines with two ranks each has ranks 2 and 3. */
START_TEST(test_ranks_go_machine_by_machine)
{
    struct launch_options options = {.ranks_per_node = 2, .machines = 3, .machine = 1};
    ck_assert_uint_eq(launch_local_count(&options), 2);
    ck_assert_uint_eq(launch_world_size(&options), 6);
    for (uint32_t i = 0; i < 2; i++) {
        struct launch_worker worker = launch_worker(&options, i);
        ck_assert_uint_eq(worker.rank, 2 + i);
        ck_assert_uint_eq(worker.node, 0);
        ck_assert_uint_eq(worker.local_rank, i);
        ck_assert_uint_eq(worker.world_size, 6);
    }
}
END_TEST

START_TEST(test_ranks_go_node_by_node)
{
    struct launch_options options = {.nodes = 3, .ranks_per_node = 2};
    for (uint32_t rank = 0; rank < 6; rank++) {
        struct launch_worker worker = launch_worker(&options, rank);
        ck_assert_uint_eq(worker.rank, rank);
        ck_assert_uint_eq(worker.node, rank / 2);
        ck_assert_uint_eq(worker.local_rank, rank % 2);
        ck_assert_uint_eq(worker.local_world_size, 2);
        ck_assert_uint_eq(worker.world_size, 6);
    }
}
END_TEST

static size_t list_length(char **list)
{
    size_t count = 0;
    while (list[count])
        count++;
    return count;
}

START_TEST(test_worker_environment)
{
    char *const *inherited =
        (char *const *)(const char *[]){"PATH=/bin", "RANK=77",    "RANKX=1",      "SHOAL_JOB=old",
                                        "EMPTY=",    "LOCAL_RANK", "SHOAL_AS=old", NULL};
    struct launch_worker worker = {
        .rank = 5, .world_size = 8, .local_rank = 1, .local_world_size = 4, .node = 1};
    struct launch_told told = {
        .job = "job-1", .socket_path = "/tmp/s.sock", .folder = "/tmp/run", .mark = "run 7"};
    char **list = launch_worker_environment(inherited, &worker, &told);
    ck_assert_ptr_nonnull(list);
    ck_assert_str_eq(launch_variable(list, "RANK"), "5");
    ck_assert_str_eq(launch_variable(list, "WORLD_SIZE"), "8");
    ck_assert_str_eq(launch_variable(list, "LOCAL_RANK"), "1");
    ck_assert_str_eq(launch_variable(list, "LOCAL_WORLD_SIZE"), "4");
    ck_assert_str_eq(launch_variable(list, "SHOAL_JOB"), "job-1");
    ck_assert_str_eq(launch_variable(list, "SHOAL_SOCKET"), "/tmp/s.sock");
    ck_assert_str_eq(launch_variable(list, "PATH"), "/bin");
    ck_assert_str_eq(launch_variable(list, "RANKX"), "1");
    ck_assert_str_eq(launch_variable(list, "EMPTY"), "");
    ck_assert_ptr_null(launch_variable(list, "PAT"));
    /* RANK and SHOAL_JOB are there once; the entry without '=' is kept as it was. */
    ck_assert_uint_eq(list_length(list), 7 - 2 + 8);
    ck_assert_str_eq(launch_variable(list, "SHOAL_RUN"), "/tmp/run");
    ck_assert_str_eq(launch_variable(list, "SHOAL_MARK"), "run 7");
    ck_assert_ptr_null(launch_variable(list, "MASTER_ADDR"));
    ck_assert_str_eq(launch_variable(list, "SHOAL_AS"), "old");
    free(list);
    told.in_place_of = "gloo";
    list = launch_worker_environment(inherited, &worker, &told);
    ck_assert_str_eq(launch_variable(list, "SHOAL_AS"), "gloo");
    ck_assert_uint_eq(list_length(list), 7 - 3 + 9);
    free(list);
    told.jax_library = "/lib/jax.so";
    list = launch_worker_environment(inherited, &worker, &told);
    ck_assert_str_eq(launch_variable(list, "JAX_CPU_COLLECTIVES_IMPLEMENTATION"), "mpi");
    ck_assert_str_eq(launch_variable(list, "MPITRAMPOLINE_LIB"), "/lib/jax.so");
    ck_assert_str_eq(launch_variable(list, "SHOAL_AS"), "old");
    ck_assert_uint_eq(list_length(list), 7 - 2 + 10);
    free(list);
    told.jax_library = NULL;
    told.master = "n1";
    told.master_port = 20001;
    list = launch_worker_environment(inherited, &worker, &told);
    ck_assert_str_eq(launch_variable(list, "MASTER_ADDR"), "n1");
    ck_assert_str_eq(launch_variable(list, "MASTER_PORT"), "20001");
    free(list);
    inherited = (char *const *)(const char *[]){"MASTER_ADDR=own", "MASTER_PORT=7", NULL};
    list = launch_worker_environment(inherited, &worker, &told);
    ck_assert_str_eq(launch_variable(list, "MASTER_ADDR"), "own");
    ck_assert_str_eq(launch_variable(list, "MASTER_PORT"), "7");
    free(list);
}
END_TEST

START_TEST(test_daemon_environment)
{
    char *const *inherited = (char *const *)(const char *[]){"HFI_NO_BACKTRACE=0", "HOME=/", NULL};
    char **list = launch_daemon_environment(inherited);
    ck_assert_str_eq(launch_variable(list, "IPATH_NO_BACKTRACE"), "1");
    ck_assert_str_eq(launch_variable(list, "HFI_NO_BACKTRACE"), "1");
    ck_assert_str_eq(launch_variable(list, "HOME"), "/");
    ck_assert_uint_eq(list_length(list), 3);
    free(list);
}
END_TEST

START_TEST(test_waits)
{
    const uint64_t ms = 1000000, day = 86400000 * ms;
    ck_assert_int_eq(supervisor_wait_ms(5, 5), 0);
    ck_assert_int_eq(supervisor_wait_ms(6, 5), 0);
    ck_assert_int_eq(supervisor_wait_ms(5, 6), 1);
    ck_assert_int_eq(supervisor_wait_ms(5, 5 + ms), 1);
    ck_assert_int_eq(supervisor_wait_ms(5, 6 + ms), 2);
    ck_assert_int_eq(supervisor_wait_ms(0, 24 * day), 24 * 86400000);
    ck_assert_int_eq(supervisor_wait_ms(0, 25 * day), INT_MAX);
    ck_assert_int_eq(supervisor_wait_ms(0, UINT64_MAX), INT_MAX);
}
END_TEST

/* A process that a rank has left may write faster than its lines can be tagged. */
START_TEST(test_endless_output_is_not_waited_for)
{
    struct child child = {.kind = CHILD_WORKER, .output = open("/dev/zero", O_RDONLY | O_CLOEXEC)};
    ck_assert_int_ge(child.output, 0);
    output_finish(&child);
    ck_assert_int_eq(child.output, -1);
}
END_TEST

START_TEST(test_job_names)
{
    char one[LAUNCH_JOB_BYTES], other[LAUNCH_JOB_BYTES];
    launch_job_name(one, UINT32_MAX, UINT64_MAX);
    launch_job_name(other, UINT32_MAX, 0);
    ck_assert_str_eq(one, "shoalrun-4294967295-ffffffffffffffff");
    ck_assert_str_ne(one, other);
}
END_TEST

START_TEST(test_weights)
{
    /* Per node, by the bound for the busiest link: (n - k) to 2 (n - 1), divided by their common
     * divisor. */
    static const uint32_t cases[][4] = {
        {1, 0, 1, 1}, {4, 0, 1, 1}, {1, 1, 1, 1}, {2, 1, 1, 2}, {3, 1, 1, 2},
        {4, 1, 1, 2}, {4, 2, 1, 3}, {2, 2, 0, 1}, {2, 5, 0, 1}, {8, 2, 3, 7},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t worker, cpu;
        launch_weights(cases[i][0], cases[i][1], &worker, &cpu);
        ck_assert_msg(worker == cases[i][2] && cpu == cases[i][3], "%u + %u: %u %u", cases[i][0],
                      cases[i][1], worker, cpu);
    }
}
END_TEST

START_TEST(test_config_text)
{
    uint16_t ports[] = {1001, 1002, 65535};
    struct launch_config config = {
        .worker_nodes = 2,
        .cpu_nodes = 1,
        .ports = ports,
        .provider = "tcp;ofi_rxm",
        .pinned_bytes = 1ull << 40,
        .extra =
            "// comment\n{\"timeouts\":{\"peer_ms\":700},\"listen\":{\"address\":\"127.0.0.2\"}}",
        .extra_name = "extra.json",
    };
    char *text;
    struct error error = {0};
    ck_assert_int_eq(launch_config_text(&config, 2, "/tmp/\"odd\"/c.sock", &text, &error), 0);
    json_t *root = json_loads(text, 0, NULL);
    free(text);
    const char *node, *socket_path, *address, *provider, *names[3];
    const char *addresses[3];
    char expected[32];
    int port, peer_ms, weights[3];
    ck_assert_int_eq(json_unpack(root, "{s:s, s:{s:s}, s:{s:s, s:i}, s:{s:s}, s:{s:i}}", "node",
                                 &node, "socket", "path", &socket_path, "listen", "address",
                                 &address, "port", &port, "fabric", "provider", &provider,
                                 "timeouts", "peer_ms", &peer_ms),
                     0);
    ck_assert_str_eq(node, "cpu0");
    ck_assert_str_eq(socket_path, "/tmp/\"odd\"/c.sock");
    ck_assert_str_eq(address, "127.0.0.2");
    ck_assert_int_eq(port, 65535);
    ck_assert_str_eq(provider, "tcp;ofi_rxm");
    ck_assert_int_eq(peer_ms, 700);
    const json_t *limits = json_object_get(root, "limits");
    ck_assert_int_eq(json_integer_value(json_object_get(limits, "pinned_bytes")), 1ll << 40);
    json_t *servers = json_object_get(root, "servers");
    ck_assert_uint_eq(json_array_size(servers), 3);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(json_unpack(json_array_get(servers, i), "{s:s, s:s, s:i !}", "name",
                                     &names[i], "address", &addresses[i], "weight", &weights[i]),
                         0);
        snprintf(expected, sizeof(expected), "127.0.0.1:%u", ports[i]);
        ck_assert_str_eq(addresses[i], expected);
    }
    ck_assert_str_eq(names[0], "node0");
    ck_assert_str_eq(names[1], "node1");
    ck_assert_str_eq(names[2], "cpu0");
    ck_assert(weights[0] == 1 && weights[1] == 1 && weights[2] == 2);
    json_decref(root);
}
END_TEST

/* The only daemon of a run has its host's name. */
START_TEST(test_config_names)
{
    static const struct {
        const char *name;
        uint32_t worker_nodes, cpu_nodes;
        const char *expected;
    } rows[] = {{"host", 1, 0, "host"},
                {NULL, 1, 0, "node0"},
                {"host", 2, 0, "node0"},
                {"host", 1, 1, "node0"}};
    char name[LAUNCH_JOB_BYTES];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct launch_config config = {.name = rows[i].name,
                                       .worker_nodes = rows[i].worker_nodes,
                                       .cpu_nodes = rows[i].cpu_nodes};
        launch_config_name(&config, 0, name);
        ck_assert_str_eq(name, rows[i].expected);
    }
    static const char *const hosts[][2] = {
        {"gpu-07.example_1", "gpu-07.example_1"},
        {"a b/c:d\xc3\xa9", "a-b-c-d--"},
        {"", "node"},
        {"0123456789012345678901234567890123456789012345678901234567890123456789",
         "012345678901234567890123456789012345678901234567890123456789012"}};
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        launch_host_name(hosts[i][0], name);
        ck_assert_str_eq(name, hosts[i][1]);
    }
}
END_TEST

/* On one machine all daemons together send no more heartbeats than 32 do. */
START_TEST(test_config_heartbeats)
{
    static const uint32_t nodes[] = {1, 32, 33, 64, LAUNCH_NODES_MAX};
    static const int expected_ms[] = {0, 0, 531, 2000, 8000};
    uint16_t ports[LAUNCH_NODES_MAX];
    for (uint32_t i = 0; i < LAUNCH_NODES_MAX; i++)
        ports[i] = (uint16_t)(1000 + i);
    for (int i = 0; i < 5; i++) {
        struct launch_config config = {
            .worker_nodes = nodes[i] - nodes[i] / 4, .cpu_nodes = nodes[i] / 4, .ports = ports};
        struct error error = {0};
        char *text;
        ck_assert_int_eq(launch_config_text(&config, 0, "/tmp/n.sock", &text, &error), 0);
        json_t *root = json_loads(text, 0, NULL);
        free(text);
        const json_t *timeouts = json_object_get(root, "timeouts");
        ck_assert_int_eq(json_integer_value(json_object_get(timeouts, "heartbeat_ms")),
                         expected_ms[i]);
        ck_assert_int_eq(json_integer_value(json_object_get(timeouts, "peer_ms")),
                         6 * expected_ms[i]);
        json_decref(root);
    }
}
END_TEST

START_TEST(test_config_recovers)
{
    uint16_t port = 9;
    static const char *const extras[] = {NULL, "{\"recovery\":true}", "{\"recovery\":false}"};
    for (int i = 0; i < 3; i++) {
        struct launch_config config = {.worker_nodes = 1, .ports = &port, .extra = extras[i]};
        struct error error = {0};
        char *text;
        ck_assert_int_eq(launch_config_text(&config, 0, "/tmp/n.sock", &text, &error), 0);
        ck_assert(launch_config_recovers(text) == (i == 1));
        free(text);
    }
    ck_assert(!launch_config_recovers("no JSON"));
}
END_TEST

/* Daemons of a run are never without a secret; what the user says of it holds. */
START_TEST(test_config_secret)
{
    static const struct {
        const char *extra, *secret_file, *protect;
    } rows[] = {
        {NULL, "/run/secret", "none"},
        {"{\"protect\":\"encrypt\"}", "/run/secret", "encrypt"},
        {"{\"secret_file\":\"/own\"}", "/own", NULL},
        {"{\"secret_file\":\"/own\",\"protect\":\"none\"}", "/own", "none"},
        {"{\"certificate_file\":\"/c\",\"key_file\":\"/k\",\"authority_file\":\"/a\"}", NULL, NULL},
        {"{\"timeouts\":{\"peer_ms\":700}}", "/run/secret", "none"},
        {"{\"listen\":{\"address\":\"::1\"}}", "/run/secret", "none"},
        {"{\"fabric\":{\"address\":\"localhost\"}}", "/run/secret", "none"},
        /* heard on other machines, which must not read it */
        {"{\"listen\":{\"address\":\"127.example.com\"}}", "/run/secret", NULL},
        {"{\"listen\":{\"address\":\"0.0.0.0\"}}", "/run/secret", NULL},
        {"{\"fabric\":{\"address\":\"10.0.0.1\"}}", "/run/secret", NULL},
    };
    uint16_t ports[] = {1, 2};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct launch_config config = {.worker_nodes = 2,
                                       .ports = ports,
                                       .secret_path = "/run/secret",
                                       .extra = rows[i].extra};
        struct error error = {0};
        char *text;
        ck_assert_int_eq(launch_config_text(&config, 0, "/tmp/n.sock", &text, &error), 0);
        json_t *root = json_loads(text, 0, NULL);
        ck_assert_pstr_eq(json_string_value(json_object_get(root, "secret_file")),
                          rows[i].secret_file);
        ck_assert_pstr_eq(json_string_value(json_object_get(root, "protect")), rows[i].protect);
        json_decref(root);
        free(text);
    }
}
END_TEST

/* One port of a machine is the first daemon's alone, whoever has said which. Where each has a
 * machine of its own, each has the port that was said, and the page is the first one's. */
START_TEST(test_config_page)
{
    static const struct {
        uint16_t page_port;
        const char *extra, *first, *elsewhere;
    } rows[] = {
        {0, NULL, NULL, NULL},
        {7000, NULL, "{\"address\":\"127.0.0.1\",\"port\":7000}", NULL},
        {0, "{\"metrics\":{\"address\":\"::1\",\"port\":8}}", "{\"address\":\"::1\",\"port\":8}",
         "{\"address\":\"::1\",\"port\":8}"},
        {7000, "{\"metrics\":{\"address\":\"::1\",\"port\":8}}", "{\"address\":\"::1\",\"port\":8}",
         "{\"address\":\"::1\",\"port\":8}"},
        {7000, "{\"metrics\":{\"port\":8}}", "{\"address\":\"127.0.0.1\",\"port\":8}",
         "{\"port\":8}"},
        {7000, "{\"metrics\":7}", "7", "7"}, /* the daemon says what is wrong */
    };
    static const struct launch_host hosts[] = {{"a", "a"}, {"b", "b"}};
    uint16_t ports[] = {1, 2};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct launch_config config = {.worker_nodes = 2,
                                       .ports = ports,
                                       .page_port = rows[i].page_port,
                                       .extra = rows[i].extra};
        for (uint32_t way = 0; way < 4; way++) {
            uint32_t self = way % 2;
            struct error error = {0};
            char *text;
            config.hosts = way < 2 ? NULL : hosts;
            ck_assert_int_eq(launch_config_text(&config, self, "/s", &text, &error), 0);
            json_t *root = json_loads(text, 0, NULL);
            char *metrics = json_dumps(json_object_get(root, "metrics"),
                                       JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS);
            ck_assert_pstr_eq(metrics, self == 0      ? rows[i].first
                                       : config.hosts ? rows[i].elsewhere
                                                      : NULL);
            free(metrics);
            json_decref(root);
            free(text);
        }
    }
}
END_TEST

/* The daemon takes each name of a host that shoalrun takes. */
START_TEST(test_config_long_host)
{
    static struct launch_host hosts[] = {{.name = "a"}, {.name = "b"}};
    const uint16_t ports[] = {65535, 65535};
    struct config_problems problems = {0};
    struct config read;
    char *text;
    for (size_t i = 0; i < 2; i++) {
        memset(hosts[i].address, 'h', LAUNCH_HOST_BYTES - 1);
        hosts[i].address[i] = '0';
    }
    struct launch_config config = {.worker_nodes = 2,
                                   .hosts = hosts,
                                   .ports = ports,
                                   .listen = hosts[1].address,
                                   .fabric = hosts[1].address,
                                   .secret_path = "/run/secret"};
    ck_assert_int_eq(launch_config_text(&config, 1, "/tmp/n.sock", &text, NULL), 0);
    ck_assert_msg(config_parse(&read, text, "long", &problems) == 0, "%s", problems.lines[0]);
    ck_assert_str_eq(read.servers[0].address, hosts[0].address);
    ck_assert_str_eq(read.listen_address, hosts[1].address);
    ck_assert_str_eq(read.fabric_address, hosts[1].address);
    config_problems_clear(&problems);
    config_clear(&read);
    free(text);
}
END_TEST

START_TEST(test_status_page)
{
    char url[LAUNCH_URL_BYTES];
    ck_assert_int_eq(launch_status_page("{\"type\":\"status\",\"page\":\"http://x:1/\"}", url), 0);
    ck_assert_str_eq(url, "http://x:1/");
    ck_assert_int_eq(launch_status_page("{\"type\":\"status\",\"page\":null}", url), ERR_INVALID);
    static const char *const others[] = {"{\"type\":\"error\"}", "{}", "7", "", "{\"type\":"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        ck_assert_int_eq(launch_status_page(others[i], url), ERR_DISCONNECTED);
}
END_TEST

START_TEST(test_config_text_bad_extra)
{
    uint16_t port = 9;
    struct launch_config config = {.worker_nodes = 1, .ports = &port, .extra_name = "e.json"};
    char *text = NULL;
    struct error error = {0};
    config.extra = "{\"a\":1,\n oops}";
    ck_assert_int_eq(launch_config_text(&config, 0, "/s", &text, &error), ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error.text, "e.json:2:"));
    config.extra = "[1]";
    ck_assert_int_eq(launch_config_text(&config, 0, "/s", &text, &error), ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(error.text, "must be a JSON object"));
    config.extra = "{\"a\":1,\"a\":2}";
    ck_assert_int_eq(launch_config_text(&config, 0, "/s", &text, &error), ERR_CONFIG);
    ck_assert_ptr_null(text);
    config.extra = NULL;
    ck_assert_int_eq(launch_config_text(&config, 0, "/s", &text, &error), 0);
    ck_assert_ptr_null(strstr(text, "fabric"));
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("launcher");
    TCase *options = tcase_create("options");
    tcase_add_test(options, test_options_all);
    tcase_add_test(options, test_options_of_nodes);
    tcase_add_test(options, test_options_end_at_the_command);
    tcase_add_test(options, test_options_refused);
    tcase_add_test(options, test_options_help);
    tcase_add_test(options, test_mode);
    suite_add_tcase(suite, options);
    TCase *plan = tcase_create("plan");
    tcase_add_test(plan, test_ranks_go_node_by_node);
    tcase_add_test(plan, test_ranks_go_machine_by_machine);
    tcase_add_test(plan, test_worker_environment);
    tcase_add_test(plan, test_daemon_environment);
    tcase_add_test(plan, test_waits);
    tcase_add_test(plan, test_endless_output_is_not_waited_for);
    tcase_add_test(plan, test_job_names);
    tcase_add_test(plan, test_weights);
    tcase_add_test(plan, test_config_text);
    tcase_add_test(plan, test_config_names);
    tcase_add_test(plan, test_config_heartbeats);
    tcase_add_test(plan, test_config_recovers);
    tcase_add_test(plan, test_config_secret);
    tcase_add_test(plan, test_config_page);
    tcase_add_test(plan, test_config_long_host);
    tcase_add_test(plan, test_status_page);
    tcase_add_test(plan, test_config_text_bad_extra);
    suite_add_tcase(suite, plan);
    return suite_main(suite);
}
