/* Options and launchers say which nodes a run has; the nodes have one secret and one folder each.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/suite.h"
#include "worker/programs/shoalrun/folder.h"
#include "worker/programs/shoalrun/nodes.h"
#include "worker/programs/shoalrun/run_secret.h"

#define LONG63 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijk"
#define LONG253                                                                                    \
    LONG63 "." LONG63 "." LONG63 "."                                                               \
           "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghi"

/* Nothing of the launcher that may have started this test. */
static void setup(void)
{
    static const char *const names[] = {
        "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",   "SLURM_STEP_ID",        "SM_HOSTS",
        "SM_CURRENT_HOST",      "SHOAL_JOB",  "JOB_COMPLETION_INDEX", "SHOAL_PORT",
        "SHOAL_SECRET",         "SM_NUM_GPUS"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
}

START_TEST(test_lists)
{
    static const struct {
        const char *list, *hosts; /* the hosts with blanks between them, or what is wrong */
        int code;
    } rows[] = {
        {"a", "a", 0},
        {"a,b.example.com,10.0.0.1,fd00::1", "a b.example.com 10.0.0.1 fd00::1", 0},
        {"gpu[03-05,12],cpu1", "gpu03 gpu04 gpu05 gpu12 cpu1", 0},
        {"n[9-11]x", "n9x n10x n11x", 0},
        {"rack[1-2]node[03-04]", "rack1node03 rack1node04 rack2node03 rack2node04", 0},
        {"[\"algo-1\",\"algo-2\"]", "algo-1 algo-2", 0},
        {"[\"algo-1\", \"algo-2\"]", "algo-1 algo-2", 0},
        {LONG253, LONG253, 0},
        {LONG253 "x", "more than 253 bytes", ERR_INVALID},
        {LONG253 "[1-2]", "more than 253 bytes", ERR_INVALID},
        {"", "an empty name", ERR_INVALID},
        {"a,", "an empty name", ERR_INVALID},
        {"a,,b", "an empty name", ERR_INVALID},
        {"a,b,A", "a host twice", ERR_INVALID},
        {"a[1-2", "wrong brackets", ERR_INVALID},
        {"a[]", "wrong brackets", ERR_INVALID},
        {"a]", "a character that no host has", ERR_INVALID},
        {"a[2-1]", "wrong numbers", ERR_INVALID},
        {"a[x]", "wrong numbers", ERR_INVALID},
        {"a[1-]", "wrong numbers", ERR_INVALID},
        {"a[1-99999999999]", "wrong numbers", ERR_INVALID},
        {"a[1,2000-3030]", "wrong numbers", ERR_INVALID},
        {"a[1-1024],b", "more than 1024 hosts", ERR_INVALID},
        {"a b", "a character that no host has", ERR_INVALID},
        {"a/b", "a character that no host has", ERR_INVALID},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct launch_host *hosts = NULL;
        struct error error = {0};
        uint32_t count = 0;
        char text[1024] = "";
        int code = nodes_expand(rows[i].list, &hosts, &count, &error);
        ck_assert_msg(code == rows[i].code, "%s: %d %s", rows[i].list, code, error.text);
        for (uint32_t j = 0; j < count; j++)
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", j ? " " : "",
                     hosts[j].address);
        if (code == 0)
            ck_assert_str_eq(text, rows[i].hosts);
        else
            ck_assert_msg(strstr(error.text, rows[i].hosts), "%s: %s", rows[i].list, error.text);
        free(hosts);
    }
}
END_TEST

/* A daemon's name is its host's, where that can be one. */
START_TEST(test_names)
{
    struct launch_host *hosts = NULL;
    uint32_t count;
    ck_assert_int_eq(nodes_expand("gpu1,fd00::1," LONG253, &hosts, &count, NULL), 0);
    ck_assert_str_eq(hosts[0].name, "gpu1");
    ck_assert_str_eq(hosts[1].name, "node1");
    ck_assert_str_eq(hosts[2].name, "node2");
    free(hosts);
}
END_TEST

struct place {
    const char *variables[7]; /* NAME=VALUE */
    const char *hosts;        /* of --hosts */
    uint32_t node_rank_plus_1;
    uint32_t count, self; /* or count 0: refused */
    const char *said;     /* the mark, or what is wrong */
};

#define SRUN(rank, size, each)                                                                     \
    "SLURM_STEP_ID=3", "SLURM_JOB_ID=17", "SLURM_PROCID=" rank, "SLURM_STEP_NUM_TASKS=" size,      \
        "SLURM_STEP_TASKS_PER_NODE=" each
#define MPIRUN(rank, size, each)                                                                   \
    "OMPI_COMM_WORLD_RANK=" rank, "OMPI_COMM_WORLD_SIZE=" size,                                    \
        "OMPI_COMM_WORLD_LOCAL_SIZE=" each, "PMIX_NAMESPACE=prte-5@1"

static const struct place places[] = {
    {{NULL}, NULL, 0, 1, 0, ""},
    {{SRUN("1", "2", "1(x2)"), "SLURM_STEP_NODELIST=n[7-8]"}, NULL, 0, 2, 1, "slurm-17-3"},
    {{SRUN("0", "1", "1"), "SLURM_STEP_NODELIST=n7"}, NULL, 0, 1, 0, ""},
    {{SRUN("1", "4", "2(x2)"), "SLURM_STEP_NODELIST=n[7-8]"},
     NULL,
     0,
     0,
     0,
     "srun has started shoalrun 2 times on this node"},
    {{SRUN("1", "3", "1(x3)"), "SLURM_STEP_NODELIST=n[7-8]"},
     NULL,
     0,
     0,
     0,
     "srun has started shoalrun on 3 nodes, and there are 2 hosts"},
    {{MPIRUN("1", "2", "1")}, "a,b", 0, 2, 1, "prte-5@1"},
    {{MPIRUN("1", "2", "1")}, NULL, 0, 0, 0, "does not say which: add --hosts"},
    {{MPIRUN("1", "2", "2")}, "a,b", 0, 0, 0, "mpirun has started shoalrun 2 times on this node"},
    {{"SM_HOSTS=[\"algo-2\",\"algo-10\",\"algo-1\"]", "SM_CURRENT_HOST=algo-2",
      "TRAINING_JOB_NAME=t"},
     NULL,
     0,
     3,
     2,
     "t"},
    {{"SM_HOSTS=[\"algo-1\",\"algo-2\"]", "SM_CURRENT_HOST=algo-3"},
     NULL,
     0,
     0,
     0,
     "this host, algo-3, is none of"},
    /* The whole name counts before its first part, and a first part that two have counts not. */
    {{"SM_HOSTS=[\"a.x\",\"a.y\"]", "SM_CURRENT_HOST=a.y", "TRAINING_JOB_NAME=t"},
     NULL,
     0,
     2,
     1,
     "t"},
    {{"SM_HOSTS=[\"a.x\",\"a.y\"]", "SM_CURRENT_HOST=a"}, NULL, 0, 0, 0, "this host, a, is none"},
    {{"SM_HOSTS=[\"a.x\",\"b.x\"]", "SM_CURRENT_HOST=b.z"}, NULL, 0, 0, 0, "b.z, is none"},
    {{"SM_HOSTS=[\"a.x\",\"b.x\"]", "SM_CURRENT_HOST=b", "TRAINING_JOB_NAME=t"},
     NULL,
     0,
     2,
     1,
     "t"},
    {{"SM_HOSTS=[\"a\",\"b\"]", "SM_CURRENT_HOST=b.x", "TRAINING_JOB_NAME=t"}, NULL, 0, 2, 1, "t"},
    {{"JOB_COMPLETION_INDEX=1", "SHOAL_JOB=uid"}, "t-0.t,t-1.t", 0, 2, 1, "uid"},
    {{"JOB_COMPLETION_INDEX=1"}, NULL, 0, 1, 0, ""},
    {{"JOB_COMPLETION_INDEX=2"}, "t-0.t,t-1.t", 0, 0, 0, "JOB_COMPLETION_INDEX: got \"2\""},
    {{"SHOAL_JOB=a/b"}, "a,b", 1, 2, 0, "a/b"},
    {{NULL}, "a,b", 3, 0, 0, "--node-rank 2: there are 2 hosts"},
    {{NULL}, NULL, 1, 0, 0, "--hosts is missing"},
    {{NULL}, "other.example,another.example", 0, 0, 0, "is none of --hosts: --node-rank"},
    {{"SHOAL_PORT=65535"}, "a,b", 1, 0, 0, "SHOAL_PORT"},
    {{"SM_NUM_GPUS=x", "SM_HOSTS=[\"algo-1\"]"}, NULL, 0, 0, 0, "SM_NUM_GPUS"},
};

START_TEST(test_places)
{
    const struct place *place = &places[_i];
    struct launch_options options = {.hosts = place->hosts,
                                     .node_rank_plus_1 = place->node_rank_plus_1};
    struct nodes nodes;
    struct error error = {0};
    for (size_t i = 0; i < 7 && place->variables[i]; i++) {
        char name[64];
        const char *value = strchr(place->variables[i], '=');
        snprintf(name, sizeof(name), "%.*s", (int)(value - place->variables[i]),
                 place->variables[i]);
        setenv(name, value + 1, 1);
    }
    int code = nodes_read(&nodes, &options, &error);
    if (place->count == 0) {
        ck_assert_int_eq(code, ERR_INVALID);
        ck_assert_msg(strstr(error.text, place->said), "%s", error.text);
    } else {
        ck_assert_msg(code == 0, "%s", error.text);
        ck_assert_uint_eq(nodes.count, place->count);
        ck_assert_uint_eq(nodes.self, place->self);
        ck_assert_str_eq(nodes.mark, place->said);
    }
    nodes_clear(&nodes);
}
END_TEST

/* All nodes have the same, and another run has others. */
START_TEST(test_ports)
{
    struct launch_options options = {.hosts = "a,b", .node_rank_plus_1 = 1, .job = "one"};
    struct nodes first, second, other;
    ck_assert_int_eq(nodes_read(&first, &options, NULL), 0);
    options.node_rank_plus_1 = 2;
    ck_assert_int_eq(nodes_read(&second, &options, NULL), 0);
    options.job = "other";
    ck_assert_int_eq(nodes_read(&other, &options, NULL), 0);
    ck_assert_uint_eq(first.port, second.port);
    ck_assert_uint_ne(first.port, other.port);
    ck_assert_uint_ge(first.port, 20000);
    ck_assert_uint_lt(first.port, 32000);
    nodes_clear(&first);
    nodes_clear(&second);
    setenv("SHOAL_PORT", "4242", 1);
    nodes_clear(&other);
    ck_assert_int_eq(nodes_read(&other, &options, NULL), 0);
    ck_assert_uint_eq(other.port, 4242);
    nodes_clear(&other);
}
END_TEST

/* The interface behind a link-local address is that of the node whose address it is. */
START_TEST(test_addresses)
{
    static const struct {
        const char *own, *interface;          /* SHOAL_INTERFACE */
        const char *address, *listen, *other; /* what is found; NULL: what is wrong, in listen */
    } rows[] = {
        {"10.0.0.1", NULL, "10.0.0.1", "10.0.0.1", "fe80::2%eth9"},
        {"fd00::1", NULL, "fd00::1", "fd00::1", "fe80::2%eth9"},
        {"fe80::1%lo", NULL, "fe80::1%lo", "fe80::1%lo", "fe80::2%lo"},
        {"10.0.0.1", "lo", "127.0.0.1", "10.0.0.1", "fe80::2%lo"},
        {"fe80::1%eth9", "lo", "127.0.0.1", "::", "fe80::2%lo"},
        {"fe80::1%eth9", NULL, NULL, "this node has no interface eth9, by which fe80::1%eth9",
         NULL},
        {"10.0.0.1", "eth9", NULL, "network interface eth9 has no IPv4 and no IPv6 address", NULL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct launch_host hosts[2] = {{.name = "a"}, {.name = "b", .address = "fe80::2%eth9"}};
        struct nodes nodes = {.count = 2, .hosts = hosts};
        struct error error = {0};
        strcpy(hosts[0].address, rows[i].own);
        if (rows[i].interface)
            setenv("SHOAL_INTERFACE", rows[i].interface, 1);
        else
            unsetenv("SHOAL_INTERFACE");
        int code = nodes_find_address(&nodes, &error);
        ck_assert_int_eq(code, rows[i].address ? 0 : ERR_INVALID);
        if (code < 0) {
            ck_assert_msg(strstr(error.text, rows[i].listen) != NULL, "%s", error.text);
            continue;
        }
        ck_assert_str_eq(nodes.address, rows[i].address);
        ck_assert_str_eq(nodes.listen, rows[i].listen);
        ck_assert_str_eq(hosts[1].address, rows[i].other);
    }
}
END_TEST

/* The key of a user: made once, nobody else's, and each run has a secret of its own. */
START_TEST(test_secrets)
{
    char *home = suite_make_directory();
    char first[RUN_SECRET_BYTES], second[RUN_SECRET_BYTES], path[300];
    struct error error = {0};
    struct stat status;
    setenv("HOME", home, 1);
    ck_assert_msg(run_secret_of_nodes("run 1", first, &error) == 0, "%s", error.text);
    ck_assert_int_eq(run_secret_of_nodes("run 1", second, &error), 0);
    ck_assert_str_eq(first, second);
    ck_assert_int_eq(run_secret_of_nodes("run 2", second, &error), 0);
    ck_assert_str_ne(first, second);
    ck_assert_uint_gt(strlen(first), 64);
    ck_assert_ptr_null(strchr(first, ' '));
    snprintf(path, sizeof(path), "%s/.shoal-key", home);
    ck_assert_int_eq(stat(path, &status), 0);
    ck_assert_uint_eq(status.st_mode & 0777, 0600);
    ck_assert_int_eq(chmod(path, 0640), 0);
    ck_assert_int_eq(run_secret_of_nodes("run 1", second, &error), ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(error.text, "others than this user can read"));
    ck_assert_int_eq(chmod(path, 0600), 0);
    ck_assert_int_eq(truncate(path, 10), 0);
    ck_assert_int_eq(run_secret_of_nodes("run 1", second, &error), ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(error.text, "is no key"));
    setenv("HOME", "/proc/nowhere", 1);
    ck_assert_int_eq(run_secret_of_nodes("run 1", second, &error), ERR_SYSTEM);
    ck_assert_ptr_nonnull(strstr(error.text, "SHOAL_SECRET"));
    unsetenv("HOME");
    ck_assert_int_eq(run_secret_of_nodes("run 1", second, &error), ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "HOME names no folder"));
    setenv("SHOAL_SECRET", "0123456789012345678901234567890123456789", 1);
    ck_assert_int_eq(run_secret_of_nodes("run 1", first, &error), 0);
    ck_assert_str_ne(first, second);
    setenv("SHOAL_SECRET", "short", 1);
    ck_assert_int_eq(run_secret_of_nodes("run 1", second, &error), ERR_INVALID);
    suite_remove_directory(home);
}
END_TEST

/* A TMPDIR that is wrong is no reason to fail. */
START_TEST(test_folders)
{
    static const char *const parents[] = {
        NULL,
        "",
        "/tmp",
        "/nowhere",
        "relative",
        "/proc",
        "/tmp/a/folder/whose/name/is/so/long/that/no/socket/fits"};
    for (size_t i = 0; i < sizeof(parents) / sizeof(parents[0]); i++) {
        struct folder folder;
        struct error error = {0};
        struct stat status;
        ck_assert_msg(folder_make(&folder, parents[i], &error) == 0, "%s", error.text);
        ck_assert_int_eq(strncmp(folder.path, "/tmp/shoalrun-", 14), 0);
        ck_assert_int_eq(stat(folder.path, &status), 0);
        ck_assert_uint_eq(status.st_mode & 0777, 0700);
        char path[FOLDER_BYTES];
        memcpy(path, folder.path, sizeof(path));
        folder_remove(&folder);
        ck_assert_int_ne(stat(path, &status), 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("nodes");
    TCase *core = tcase_create("core");
    tcase_add_checked_fixture(core, setup, NULL);
    tcase_add_test(core, test_lists);
    tcase_add_test(core, test_names);
    tcase_add_loop_test(core, test_places, 0, sizeof(places) / sizeof(places[0]));
    tcase_add_test(core, test_ports);
    tcase_add_test(core, test_addresses);
    tcase_add_test(core, test_secrets);
    tcase_add_test(core, test_folders);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
