#include "common/memory/topology.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "tests/lib/suite.h"

static struct topology *open_synthetic(const char *description)
{
    struct topology *topology = NULL;
    struct error error = {0};
    int code = topology_open(&topology, description, &error);
    ck_assert_msg(code == 0, "%s: %s", description, error.text);
    ck_assert_ptr_nonnull(topology);
    return topology;
}

START_TEST(synthetic_counts)
{
    static const struct {
        const char *description;
        uint32_t cores, numas;
        const char *text;
    } cases[] = {
        {"numa:1 core:1 pu:1", 1, 1, "1 core, 1 NUMA node"},
        {"numa:1 core:2 pu:1", 2, 1, "2 cores, 1 NUMA node"},
        {"numa:2 core:4 pu:2", 8, 2, "8 cores, 2 NUMA nodes"},
        {"package:2 numa:4 core:3 pu:2", 24, 8, "24 cores, 8 NUMA nodes"},
        {"pu:3", 3, 1, "3 cores, 1 NUMA node"}, /* no core level: processors stand in */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct topology *topology = open_synthetic(cases[i].description);
        char text[64];
        ck_assert_uint_eq(topology_core_count(topology), cases[i].cores);
        ck_assert_uint_eq(topology_numa_count(topology), cases[i].numas);
        ck_assert_str_eq(topology_describe(topology, text, sizeof(text)), cases[i].text);
        topology_close(topology);
    }
}
END_TEST

#define PU(os, set, node, gp)                                                                      \
    "<object type='Core' os_index='" os "' cpuset='" set "' complete_cpuset='" set                 \
    "' nodeset='" node "' complete_nodeset='" node "' gp_index='" gp                               \
    "'><object type='PU' os_index='" os "' cpuset='" set "' complete_cpuset='" set                 \
    "' nodeset='" node "' complete_nodeset='" node "' gp_index='1" gp "'/></object>"
#define NODE(os, set, node, gp)                                                                    \
    "<object type='NUMANode' os_index='" os "' cpuset='" set "' complete_cpuset='" set             \
    "' nodeset='" node "' complete_nodeset='" node "' gp_index='" gp                               \
    "' local_memory='1073741824'><page_type size='4096' count='262144'/></object>"
#define GROUP(set, node, gp)                                                                       \
    "<object type='Package' os_index='" gp "' cpuset='" set "' complete_cpuset='" set              \
    "' nodeset='" node "' complete_nodeset='" node "' gp_index='" gp "'>"
#define BRIDGE(gp, first, last)                                                                    \
    "<object type='Bridge' gp_index='" gp "' bridge_type='0-1' depth='0' bridge_pci='0000:[" first \
    "-" last "]'>"
#define PCI(gp, at, what)                                                                          \
    "<object type='PCIDev' gp_index='" gp "' pci_busid='" at "' pci_type='" what                   \
    "' pci_link_speed='8.0'>"
#define NET(gp, name) "<object type='OSDev' gp_index='" gp "' name='" name "' osdev_type='2'/>"
#define GPU "0302 [10de:2330] [10de:16c1] a1"
#define NIC "0200 [15b3:1021] [15b3:0001] 00"

/* Two sockets: on the first a GPU and eth0; on the second two GPUs, of which one shares a bridge
 * with eth1, and a display of another vendor. */
static const char two_sockets[] =
    "<?xml version='1.0' encoding='UTF-8'?>\n<!DOCTYPE topology SYSTEM 'hwloc2.dtd'>\n"
    "<topology version='2.0'><object type='Machine' os_index='0' cpuset='0x3' "
    "complete_cpuset='0x3' "
    "allowed_cpuset='0x3' nodeset='0x3' complete_nodeset='0x3' allowed_nodeset='0x3' gp_index='1'>"
    /* the first */
    GROUP("0x1", "0x1", "2") NODE("0", "0x1", "0x1", "3") PU("0", "0x1", "0x1", "4")
        BRIDGE("20", "10", "1f")
            PCI("21", "0000:1b:00.0", GPU) "</object>" PCI("22", "0000:1c:00.0", NIC)
                NET("23", "eth0") "</object></object></object>"
    /* the second */
    GROUP("0x2", "0x2", "5") NODE("1", "0x2", "0x2", "6") PU("1", "0x2", "0x2", "7")
        BRIDGE("30", "80", "8f") PCI("31", "0000:81:00.0", GPU) "</object>" PCI(
            "32", "0000:82:00.0",
            "0300 [1a03:2000] [1a03:2000] "
            "41") "</object></object>" BRIDGE("40", "a0", "af")
            PCI("41", "0000:a1:00.0", GPU) "</object>" PCI("42", "0000:a2:00.0", NIC)
                NET("43", "eth1") "</object></object></object></object></topology>";

/* With quotation marks as hwloc itself writes them: its own reader, which is all that there is
 * where the one of libxml is not installed, takes no others. */
static struct topology *open_two_sockets(void)
{
    char text[sizeof(two_sockets)];
    memcpy(text, two_sockets, sizeof(text));
    for (char *quote = text; (quote = strchr(quote, '\''));)
        *quote = '"';
    return open_synthetic(text);
}

START_TEST(gpus)
{
    struct topology *topology = open_two_sockets();
    struct topology_gpu found[4];
    ck_assert_uint_eq(topology_core_count(topology), 2);
    ck_assert_uint_eq(topology_gpus(topology, found, 4), 3);
    ck_assert_str_eq(found[0].address, "0000:1b:00.0");
    ck_assert_int_eq(found[0].numa_node, 0);
    ck_assert_str_eq(found[0].nic, "eth0");
    ck_assert_str_eq(found[1].address, "0000:81:00.0");
    ck_assert_int_eq(found[1].numa_node, 1);
    ck_assert_str_eq(found[1].nic, "eth1");
    ck_assert_str_eq(found[2].address, "0000:a1:00.0");
    ck_assert_str_eq(found[2].nic, "eth1");
    ck_assert_uint_eq(topology_gpus(topology, found, 1), 3); /* no more than there is room for */
    char text[512], expected[] = "2 cores, 2 NUMA nodes, GPU 0000:1b:00.0 (NUMA node 0, nearest to "
                                 "eth0), GPU 0000:81:00.0 (NUMA node 1, nearest to eth1), GPU "
                                 "0000:a1:00.0 (NUMA node 1, nearest to eth1)";
    ck_assert_str_eq(topology_describe(topology, text, sizeof(text)), expected);
    for (size_t room = 1; room < sizeof(expected); room++) {
        topology_describe(topology, text, room);
        ck_assert_uint_eq(strlen(text), room - 1);
        ck_assert_int_eq(strncmp(text, expected, room - 1), 0);
    }
    topology_close(topology);
    topology = open_synthetic("numa:2 core:4 pu:2");
    ck_assert_uint_eq(topology_gpus(topology, found, 4), 0);
    topology_close(topology);
    struct error error;
    ck_assert_int_eq(topology_open(&topology, "<nonsense", &error), ERR_INVALID);
}
END_TEST

START_TEST(description_is_cut)
{
    struct topology *topology = open_synthetic("numa:2 core:4 pu:2");
    char text[8];
    ck_assert_str_eq(topology_describe(topology, text, sizeof(text)), "8 cores");
    topology_close(topology);
}
END_TEST

START_TEST(indexes_go_round_the_nodes)
{
    struct topology *topology = open_synthetic("numa:3 core:2 pu:2");
    static const uint32_t expected[] = {0, 1, 2, 0, 1, 2, 0, 1, 2};
    for (uint32_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
        ck_assert_uint_eq(topology_core_numa(topology, i), expected[i]);
    ck_assert_uint_lt(topology_core_numa(topology, UINT32_MAX), 3);
    topology_close(topology);
}
END_TEST

START_TEST(every_node_gets_its_share)
{
    struct topology *topology = open_synthetic("package:2 numa:2 core:5 pu:1");
    uint32_t counts[4] = {0};
    for (uint32_t i = 0; i < topology_core_count(topology); i++) {
        uint32_t numa = topology_core_numa(topology, i);
        ck_assert_uint_lt(numa, 4);
        counts[numa]++;
        /* Never two ahead of another. */
        for (int j = 0; j < 4; j++)
            ck_assert_uint_le(counts[numa], counts[j] + 1);
    }
    for (int j = 0; j < 4; j++)
        ck_assert_uint_eq(counts[j], 5);
    topology_close(topology);
}
END_TEST

START_TEST(bad_description)
{
    static const char *const bad[] = {"", "a machine", "numa:0 core:1 pu:1", "core:2"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct topology *topology = (struct topology *)&bad;
        struct error error = {0};
        int code = topology_open(&topology, bad[i], &error);
        if (code == 0) { /* hwloc's grammar is its own; what it takes must be usable */
            ck_assert_uint_ge(topology_core_count(topology), 1);
            topology_close(topology);
            continue;
        }
        ck_assert_int_eq(code, ERR_INVALID);
        ck_assert_int_eq(error.code, ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(error.text, bad[i]));
        ck_assert_ptr_eq(topology, &bad); /* outputs only on success */
    }
    struct topology *topology = NULL;
    ck_assert_int_eq(topology_open(&topology, "a machine", NULL), ERR_INVALID);
}
END_TEST

START_TEST(synthetic_binds_nothing)
{
    struct topology *topology = open_synthetic("numa:1 core:2 pu:1");
    struct error error = {0};
    cpu_set_t before, after;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(before), &before), 0);
    ck_assert_int_eq(topology_bind_thread(topology, 1, &error), ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(error.text, "core 1"));
    ck_assert_int_eq(sched_getaffinity(0, sizeof(after), &after), 0);
    ck_assert(CPU_EQUAL(&before, &after));
    topology_close(topology);
}
END_TEST

START_TEST(this_machine)
{
    struct topology *topology = open_synthetic(NULL);
    cpu_set_t allowed;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    ck_assert_uint_ge(topology_core_count(topology), 1);
    ck_assert_uint_le(topology_core_count(topology), (uint32_t)CPU_COUNT(&allowed));
    ck_assert_uint_ge(topology_numa_count(topology), 1);
    ck_assert_uint_le(topology_numa_count(topology), topology_core_count(topology));
    topology_close(topology);
}
END_TEST

/* A process that may use one processor sees one core, and it is that one. */
START_TEST(affinity_is_respected)
{
#ifdef __SANITIZE_THREAD__
    suite_skip("affinity_is_respected", "the sanitizer's own thread keeps every processor");
    return;
#endif
    cpu_set_t allowed, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    int last = -1;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &allowed))
            last = i;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    if (sched_setaffinity(0, sizeof(one), &one)) {
        suite_skip("affinity_is_respected", "affinity cannot be set here");
        return;
    }
    struct topology *topology = open_synthetic(NULL);
    ck_assert_uint_eq(topology_core_count(topology), 1);
    ck_assert_uint_eq(topology_numa_count(topology), 1);
    struct error error = {0};
    ck_assert_int_eq(topology_bind_thread(topology, 7, &error), 0);
    cpu_set_t bound;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(bound), &bound), 0);
    ck_assert(CPU_EQUAL(&bound, &one));
    topology_close(topology);
}
END_TEST

struct binder {
    const struct topology *topology;
    uint32_t index;
    int code;
    struct error error;
    cpu_set_t bound;
};

static void *binder_run(void *argument)
{
    struct binder *binder = argument;
    binder->code = topology_bind_thread(binder->topology, binder->index, &binder->error);
    pthread_getaffinity_np(pthread_self(), sizeof(binder->bound), &binder->bound);
    return NULL;
}

START_TEST(threads_are_bound)
{
    struct topology *topology = open_synthetic(NULL);
    cpu_set_t before, after, all;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(before), &before), 0);
    uint32_t count = topology_core_count(topology);
    if (count > 8)
        count = 8;
    struct binder binders[9];
    pthread_t threads[9];
    for (uint32_t i = 0; i <= count; i++) { /* one more than cores: it goes round */
        uint32_t index = i < count ? i : topology_core_count(topology);
        binders[i] = (struct binder){.topology = topology, .index = index};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, binder_run, &binders[i]), 0);
    }
    for (uint32_t i = 0; i <= count; i++)
        pthread_join(threads[i], NULL);
    if (binders[0].code == ERR_UNSUPPORTED) {
        suite_skip("threads_are_bound", "%s", binders[0].error.text);
        topology_close(topology);
        return;
    }
    CPU_ZERO(&all);
    for (uint32_t i = 0; i <= count; i++) {
        ck_assert_msg(binders[i].code == 0, "%s", binders[i].error.text);
        cpu_set_t common;
        CPU_AND(&common, &all, &binders[i].bound);
        /* Each core once, and the first again at the end. */
        ck_assert_int_eq(CPU_COUNT(&common), i < count ? 0 : CPU_COUNT(&binders[i].bound));
        CPU_OR(&all, &all, &binders[i].bound);
    }
    ck_assert(CPU_EQUAL(&binders[0].bound, &binders[count].bound));
    /* The thread that asked for nothing runs where it did. */
    ck_assert_int_eq(sched_getaffinity(0, sizeof(after), &after), 0);
    ck_assert(CPU_EQUAL(&before, &after));
    topology_close(topology);
}
END_TEST

START_TEST(open_and_close_often)
{
    for (int i = 0; i < 20; i++)
        topology_close(open_synthetic("numa:2 core:2 pu:2"));
    topology_close(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("topology");
    TCase *synthetic = tcase_create("synthetic");
    tcase_add_test(synthetic, synthetic_counts);
    tcase_add_test(synthetic, description_is_cut);
    tcase_add_test(synthetic, gpus);
    tcase_add_test(synthetic, indexes_go_round_the_nodes);
    tcase_add_test(synthetic, every_node_gets_its_share);
    tcase_add_test(synthetic, bad_description);
    tcase_add_test(synthetic, synthetic_binds_nothing);
    tcase_add_test(synthetic, open_and_close_often);
    suite_add_tcase(suite, synthetic);
    TCase *machine = tcase_create("machine");
    tcase_add_test(machine, this_machine);
    tcase_add_test(machine, affinity_is_respected);
    tcase_add_test(machine, threads_are_bound);
    suite_add_tcase(suite, machine);
    return suite_main(suite);
}
