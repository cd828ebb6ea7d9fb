#include "tests/lib/virtual/virtual_cluster.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "tests/lib/virtual/virtual_private.h"

#define KEPT_BYTES (32 << 20)

/* --- making it -------------------------------------------------------------------------------- */

static void node_create(struct virtual_cluster *cluster, uint32_t number)
{
    struct virtual_node *node = &cluster->nodes[number];
    node->cluster = cluster;
    node->number = number;
    node->commands.node = node->events.node = node;
    for (uint32_t i = 0; i < cluster->options.nodes; i++)
        node->to[i].node = &cluster->nodes[i];
    virtual_daemon_configure(node);
    virtual_daemon_begin(node);
}

struct virtual_cluster *virtual_cluster_create(const struct virtual_options *options)
{
    /* The heap keeps memory that is freed at its top: giving it back each time took four fifths of
     * the processor's time. */
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
    mallopt(M_MMAP_THRESHOLD, KEPT_BYTES);
    mallopt(M_TOP_PAD, KEPT_BYTES / 16);
    struct virtual_cluster *cluster = calloc(1, sizeof(*cluster));
    EXPECT(cluster);
    cluster->options = *options;
    cluster->random = options->seed;
    cluster->next_handle = 1;
    struct virtual_options *own = &cluster->options;
    own->chunk_bytes = own->chunk_bytes ? own->chunk_bytes : 4096;
    own->window_chunks = own->window_chunks ? own->window_chunks : 4;
    own->most_delay_ns = own->most_delay_ns ? own->most_delay_ns : 20000;
    own->memory_bytes = own->memory_bytes ? own->memory_bytes : 256ull << 20;
    struct memory_fabric_options fabric = {.seed = options->seed ^ 0x5555,
                                           .least_delay_ns = 1,
                                           .most_delay_ns = own->most_delay_ns,
                                           .reorder = own->reorder,
                                           .shared_receives = own->shared_receives,
                                           .messages_wait = own->sends,
                                           .nodes = own->nodes};
    cluster->fabric = memory_fabric_create(&fabric);
    EXPECT(cluster->fabric);
    cluster->starting = true;
    for (uint32_t i = 0; i < own->nodes; i++)
        node_create(cluster, i);
    for (uint32_t a = 0; a < own->nodes; a++) {
        for (uint32_t b = a + 1; b < own->nodes; b++)
            virtual_link_begin(&cluster->nodes[a], &cluster->nodes[b]);
    }
    cluster->starting = false;
    return cluster;
}

/* --- running ---------------------------------------------------------------------------------- */

/* Whatever it has got, the daemon makes the best of it. */
static void node_run(struct virtual_node *node)
{
    if (!node->alive || node->paused)
        return;
    exchange_run(node->exchange);
    exchange_check(node->exchange);
}

static uint64_t cluster_next_ns(const struct virtual_cluster *cluster)
{
    uint64_t fabric_ns = memory_fabric_next_ns(cluster->fabric);
    uint64_t heap_ns = virtual_time_next_ns(cluster);
    return fabric_ns < heap_ns ? fabric_ns : heap_ns;
}

uint64_t virtual_cluster_run(struct virtual_cluster *cluster, uint64_t steps)
{
    uint64_t done = 0;
    for (; done < steps; done++) {
        uint64_t next_ns = cluster_next_ns(cluster);
        if (next_ns == UINT64_MAX)
            break;
        if (next_ns > cluster->now_ns)
            cluster->now_ns = next_ns;
        memory_fabric_advance(cluster->fabric, cluster->now_ns);
        for (uint32_t i = 0; i < cluster->options.nodes; i++) {
            if (cluster->nodes[i].alive && !cluster->nodes[i].paused)
                virtual_engine_poll(&cluster->nodes[i]);
        }
        if (virtual_time_next_ns(cluster) <= cluster->now_ns)
            virtual_time_step(cluster);
        for (uint32_t i = 0; i < cluster->options.nodes; i++)
            node_run(&cluster->nodes[i]);
        cluster->moments++;
    }
    return done;
}

void virtual_cluster_run_for(struct virtual_cluster *cluster, uint64_t ns)
{
    uint64_t until_ns = cluster->now_ns + ns;
    while (cluster_next_ns(cluster) <= until_ns)
        virtual_cluster_run(cluster, 1);
    cluster->now_ns = until_ns;
}

/* Nothing of any job is left. */
static void node_check_empty(const struct virtual_node *node)
{
    struct exchange_totals totals;
    if (!node->alive)
        return;
    exchange_totals(node->exchange, &totals);
    EXPECT_MSG(totals.jobs == 0 && totals.workers == 0 && totals.slots == 0,
               "node %u is left with %u jobs, %u workers, %u slots", node->number,
               (unsigned)totals.jobs, (unsigned)totals.workers, (unsigned)totals.slots);
    EXPECT(coordinator_worker_count(node->coordinator) == 0);
    EXPECT(!coordinator_jobs(node->coordinator) && !coordinator_gatherings(node->coordinator));
}

void virtual_cluster_finish(struct virtual_cluster *cluster, uint64_t limit_ns)
{
    uint64_t deadline_ns = cluster->now_ns + limit_ns;
    while (!virtual_cluster_ended(cluster)) {
        if (cluster->now_ns >= deadline_ns) {
            virtual_jobs_describe(cluster);
            ck_abort_msg("workers still there at %.3f s, seed %llu", (double)cluster->now_ns / 1e9,
                         (unsigned long long)cluster->options.seed);
        }
        virtual_cluster_run(cluster, 64);
    }
    virtual_jobs_check_ended(cluster);
    /* News of the jobs' end may still be under way. */
    virtual_cluster_run_for(cluster, 10 * NS_PER_S);
    for (uint32_t i = 0; i < cluster->options.nodes; i++)
        node_check_empty(&cluster->nodes[i]);
}

static void node_destroy(struct virtual_node *node)
{
    node_check_empty(node);
    if (node->alive)
        virtual_daemon_end(node);
    virtual_time_drain(node); /* what was on its way to it */
    free(node->waiting.items);
    config_clear(&node->config);
}

void virtual_cluster_destroy(struct virtual_cluster *cluster)
{
    for (uint32_t a = 0; a < cluster->options.nodes; a++) {
        for (uint32_t b = a + 1; b < cluster->options.nodes; b++)
            virtual_cluster_cut(cluster, a, b);
    }
    virtual_cluster_run_for(cluster, NS_PER_S);
    for (uint32_t i = 0; i < cluster->options.nodes; i++)
        node_destroy(&cluster->nodes[i]);
    virtual_jobs_free(cluster);
    memory_fabric_destroy(cluster->fabric);
    free(cluster->heap.items);
    free(cluster);
}

uint64_t virtual_cluster_now_ns(const struct virtual_cluster *cluster)
{
    return cluster->now_ns;
}

struct virtual_traffic virtual_cluster_traffic(const struct virtual_cluster *cluster, uint32_t node)
{
    return cluster->nodes[node].traffic;
}

uint64_t virtual_cluster_part_bytes(const struct virtual_cluster *cluster, uint32_t job)
{
    const struct virtual_job_run *run = &cluster->jobs[job];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < run->job.collectives; i++)
        bytes += run->script[i].ask.count * dtype_bytes(run->script[i].ask.dtype);
    return bytes;
}

uint32_t virtual_cluster_late_reports(const struct virtual_cluster *cluster, uint32_t node)
{
    return cluster->nodes[node].late_reports;
}

uint64_t virtual_cluster_used_bytes(const struct virtual_cluster *cluster, uint32_t node)
{
    const struct virtual_node *it = &cluster->nodes[node];
    return it->alive ? buffer_pool_used_bytes(it->pool) : 0;
}

void virtual_cluster_why(const struct virtual_cluster *cluster, struct verdict *verdict)
{
    struct waits_figures reports[VIRTUAL_NODES_MAX];
    struct engine_job_status job;
    size_t count = 0;
    for (uint32_t i = 0; i < cluster->options.nodes && count < VIRTUAL_NODES_MAX; i++) {
        if (cluster->nodes[i].alive &&
            exchange_job_totals(cluster->nodes[i].exchange, &job, 1) == 1)
            reports[count++] = job.waits;
    }
    ck_assert_uint_gt(count, 0);
    verdict_find(verdict, reports, count);
}

uint64_t virtual_cluster_moments(const struct virtual_cluster *cluster)
{
    return cluster->moments;
}
