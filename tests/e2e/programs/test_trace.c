/* shoalctl trace of a running shoalperf: that every chunk has every stage, in order, on one node
 * and on two; that the files of two nodes go together; and what is said when there is no trace. */
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/commands/trace.h"
#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define RANKS_PER_NODE 2
#define CHUNKS_MAX 68 /* of 4 MiB */
#define SEQUENCES_MAX 20000
#define LANES_MAX 4096
#define EXPECT_MSG(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg(__VA_ARGS__);                                                             \
    } while (0)

static char *directory;
static struct cluster *cluster;
static struct process *ranks[4];
static uint32_t rank_count;

static void setup(void)
{
    directory = suite_make_directory();
}

static void end_ranks(void)
{
    for (uint32_t i = 0; i < rank_count; i++)
        process_free(ranks[i]);
    rank_count = 0;
}

static void teardown(void)
{
    end_ranks();
    cluster_free(cluster);
    cluster = NULL;
    suite_remove_directory(directory);
}

static bool job_runs(const json_t *status)
{
    const json_t *job = json_array_get(json_object_get(status, "jobs"), 0);
    return json_integer_value(json_object_get(job, "collectives")) > 20;
}

/* shoalperf on all nodes, for longer than any test. */
static void start_job(uint32_t nodes)
{
    const char *argv[] = {
        CLUSTER_BIN "shoalperf", "all_reduce", "-b", "4M", "-n", "1000000", "--check", "0", NULL};
    cluster = cluster_start(nodes, NULL);
    cluster_job(cluster, "perf", RANKS_PER_NODE, argv, ranks);
    rank_count = nodes * RANKS_PER_NODE;
    for (uint32_t node = 0; node < nodes; node++)
        ck_assert(cluster_wait_status(cluster, node, job_runs, CLUSTER_PATIENCE_MS));
}

/* On one node chunks of 256 KiB; where shards are cut for the links, of 60 KiB. */
static uint32_t chunk_count(void)
{
    return rank_count == RANKS_PER_NODE ? 16 : CHUNKS_MAX;
}

static struct process *trace_start(uint32_t node, const char *job, const char *seconds,
                                   const char *file)
{
    const char *words[] = {"trace", job, "--seconds", seconds, "--output", file, NULL};
    return cluster_shoalctl(cluster, node, words);
}

static void trace_end(struct process *process, int code, const char *output, const char *errors)
{
    int ended = process_wait(process, 2 * CLUSTER_PATIENCE_MS);
    EXPECT_MSG(ended == code, "%d: %s%s", ended, process_output(process), process_errors(process));
    EXPECT_MSG(strstr(process_output(process), output), "no \"%s\" in %s", output,
               process_output(process));
    EXPECT_MSG(strstr(process_errors(process), errors), "no \"%s\" in %s", errors,
               process_errors(process));
    process_free(process);
}

static const char *file_name(const char *name, char path[512])
{
    snprintf(path, 512, "%s/%s", directory, name);
    return path;
}

/* --- looking at a trace ----------------------------------------------------------------------- */

struct span {
    int64_t begin_ns, end_ns;
    int count;
};

/* Stages that a chunk has gone through. */
struct chunk_seen {
    struct span stages[TRACE_STAGES];
    struct span in[4], out[4]; /* by rank */
    bool edge;                 /* some stage is cut or open */
};

struct seen {
    json_t *document;
    json_int_t pid;
    uint32_t node;
    struct chunk_seen (*chunks)[CHUNKS_MAX]; /* [SEQUENCES_MAX] */
    json_int_t first, last;                  /* sequence numbers */
};

static int64_t nanoseconds(const json_t *event, const char *key)
{
    const json_t *value = json_object_get(event, key);
    EXPECT_MSG(json_is_real(value), "no %s", key);
    return llround(json_real_value(value) * 1000);
}

static void span_add(struct span *span, int64_t begin_ns, int64_t end_ns)
{
    if (span->count == 0 || begin_ns < span->begin_ns)
        span->begin_ns = begin_ns;
    if (span->count == 0 || end_ns > span->end_ns)
        span->end_ns = end_ns;
    span->count++;
}

static void see_stage(struct seen *seen, const json_t *event)
{
    const json_t *arguments = json_object_get(event, "args");
    const char *collective = json_string_value(json_object_get(arguments, "collective"));
    json_int_t sequence = json_integer_value(json_object_get(arguments, "sequence"));
    const json_t *chunk = json_object_get(arguments, "chunk");
    if (!chunk || strcmp(collective, "all_reduce") != 0)
        return;
    EXPECT_MSG(sequence >= 0 && sequence < SEQUENCES_MAX &&
                   json_integer_value(chunk) < chunk_count(),
               "chunk %d of collective %d", (int)json_integer_value(chunk), (int)sequence);
    struct chunk_seen *it = &seen->chunks[sequence][json_integer_value(chunk)];
    int64_t begin_ns = nanoseconds(event, "ts"), length_ns = nanoseconds(event, "dur");
    EXPECT_MSG(length_ns >= 0, "a stage of %d ns", (int)length_ns);
    if (sequence < seen->first)
        seen->first = sequence;
    if (sequence > seen->last)
        seen->last = sequence;
    it->edge |= json_object_get(arguments, "began_before") != NULL ||
                json_object_get(arguments, "not_ended") != NULL;
    const char *name = json_string_value(json_object_get(event, "name"));
    const char *peer = json_string_value(json_object_get(arguments, "peer"));
    for (unsigned stage = 0; stage < TRACE_STAGES; stage++) {
        if (strcmp(name, trace_stage_name((enum trace_stage)stage)) != 0)
            continue;
        span_add(&it->stages[stage], begin_ns, begin_ns + length_ns);
        if (stage == TRACE_COPY_IN || stage == TRACE_COPY_OUT) {
            EXPECT_MSG(peer && strncmp(peer, "rank ", 5) == 0 && peer[5] < '4', "peer %s", peer);
            struct span *copies = stage == TRACE_COPY_IN ? it->in : it->out;
            span_add(&copies[peer[5] - '0'], begin_ns, begin_ns + length_ns);
        }
    }
}

/* Slices of a lane lie inside each other or beside each other: they come sorted. */
static void check_nesting(const json_t *events)
{
    static int64_t ends[LANES_MAX][8];
    static int depth[LANES_MAX];
    memset(depth, 0, sizeof(depth));
    size_t i;
    const json_t *event;
    json_array_foreach(events, i, event)
    {
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0)
            continue;
        json_int_t tid = json_integer_value(json_object_get(event, "tid"));
        EXPECT_MSG(tid > 0 && tid < LANES_MAX, "lane %d", (int)tid);
        int64_t begin_ns = nanoseconds(event, "ts");
        int64_t end_ns = begin_ns + nanoseconds(event, "dur");
        int *at = &depth[tid];
        while (*at > 0 && ends[tid][*at - 1] <= begin_ns)
            --*at;
        EXPECT_MSG(*at == 0 || end_ns <= ends[tid][*at - 1], "slices cross on lane %d", (int)tid);
        EXPECT_MSG(*at < 8, "too deep");
        ends[tid][(*at)++] = end_ns;
    }
}

static struct seen see(const char *path, uint32_t node)
{
    json_error_t place;
    struct seen seen = {.node = node, .first = SEQUENCES_MAX, .last = -1};
    seen.document = json_load_file(path, 0, &place);
    EXPECT_MSG(seen.document, "%s: %s", path, place.text);
    seen.chunks = calloc(SEQUENCES_MAX, sizeof(*seen.chunks));
    const json_t *events = json_object_get(seen.document, "traceEvents");
    size_t i;
    const json_t *event;
    check_nesting(events);
    json_array_foreach(events, i, event)
    {
        json_int_t pid = json_integer_value(json_object_get(event, "pid"));
        EXPECT_MSG(i == 0 || pid == seen.pid, "pids %d, %d", (int)pid, (int)seen.pid);
        seen.pid = pid;
        const char *category = json_string_value(json_object_get(event, "cat"));
        if (category && strcmp(category, "stage") == 0)
            see_stage(&seen, event);
    }
    return seen;
}

static void unsee(struct seen *seen)
{
    free(seen->chunks);
    json_decref(seen->document);
}

static void expect_one(const struct chunk_seen *chunk, enum trace_stage stage)
{
    EXPECT_MSG(chunk->stages[stage].count == 1, "%d times %s", chunk->stages[stage].count,
               trace_stage_name(stage));
}

static void expect_order(const struct span *before, const struct span *after, const char *what)
{
    EXPECT_MSG(before->end_ns <= after->begin_ns, "%s: ends at %lld, begins at %lld", what,
               (long long)before->end_ns, (long long)after->begin_ns);
}

/* From the ranks' memory to the node's sum; how many copies out there are not. */
static int check_local(const struct chunk_seen *chunk, uint32_t node, const struct span *last)
{
    int missing = 0;
    const struct span *stages = chunk->stages;
    expect_one(chunk, TRACE_WAIT);
    expect_one(chunk, TRACE_LOCAL_SUM);
    expect_order(&stages[TRACE_WAIT], &stages[TRACE_LOCAL_SUM], "wait, local sum");
    for (uint32_t rank = node * RANKS_PER_NODE; rank < (node + 1) * RANKS_PER_NODE; rank++) {
        EXPECT_MSG(chunk->in[rank].count == 1, "rank %u: %d copies in", rank,
                   chunk->in[rank].count);
        EXPECT_MSG(chunk->in[rank].end_ns <= stages[TRACE_WAIT].end_ns, "copy in, wait");
        EXPECT_MSG(chunk->out[rank].count <= 1, "%d copies out", chunk->out[rank].count);
        missing += chunk->out[rank].count == 0;
        if (chunk->out[rank].count > 0)
            expect_order(last, &chunk->out[rank], "the result, copy out");
    }
    return missing;
}

/* The owner's side, on the node that is it. */
static void check_owner(const struct chunk_seen *chunk)
{
    const struct span *stages = chunk->stages;
    expect_one(chunk, TRACE_GATHER);
    expect_one(chunk, TRACE_OWNER_SUM);
    expect_one(chunk, TRACE_RETURN);
    expect_order(&stages[TRACE_GATHER], &stages[TRACE_OWNER_SUM], "gather, owner's sum");
    expect_order(&stages[TRACE_OWNER_SUM], &stages[TRACE_RETURN], "owner's sum, return");
}

static int check_shared(const struct chunk_seen *chunk, uint32_t node, uint32_t *owned)
{
    const struct span *stages = chunk->stages;
    expect_one(chunk, TRACE_AT_OWNER);
    expect_order(&stages[TRACE_LOCAL_SUM], &stages[TRACE_AT_OWNER], "local sum, at owner");
    if (stages[TRACE_SEND].count == 0) {
        ++*owned;
        check_owner(chunk);
        EXPECT_MSG(stages[TRACE_OWNER_SUM].end_ns <= stages[TRACE_AT_OWNER].end_ns, "owner's sum");
        return check_local(chunk, node, &stages[TRACE_AT_OWNER]);
    }
    expect_one(chunk, TRACE_SEND);
    expect_one(chunk, TRACE_DELIVER);
    expect_order(&stages[TRACE_LOCAL_SUM], &stages[TRACE_SEND], "local sum, send");
    expect_order(&stages[TRACE_AT_OWNER], &stages[TRACE_DELIVER], "at owner, deliver");
    return check_local(chunk, node, &stages[TRACE_DELIVER]);
}

static json_int_t head_number(const struct seen *seen, const char *key)
{
    const json_t *value = json_object_get(json_object_get(seen->document, "otherData"), key);
    EXPECT_MSG(json_is_integer(value), "no %s", key);
    return json_integer_value(value);
}

static void check_all(const struct seen *seen, uint32_t nodes)
{
    int missing = 0;
    EXPECT_MSG(head_number(seen, "dropped") == 0, "records dropped");
    EXPECT_MSG(head_number(seen, "refused") == 0, "times refused");
    EXPECT_MSG(seen->last - seen->first > 5, "collectives %d to %d only", (int)seen->first,
               (int)seen->last);
    /* The collectives between are whole: a rank copies the last out before it asks for the next.
     * The first may have nothing but a late rank's copy out, when another rank had copied the next
     * one in before the trace began. */
    for (json_int_t sequence = seen->first + 2; sequence < seen->last - 1; sequence++) {
        uint32_t owned = 0;
        for (uint32_t i = 0; i < chunk_count(); i++) {
            const struct chunk_seen *chunk = &seen->chunks[sequence][i];
            EXPECT_MSG(!chunk->edge, "chunk %u of %d is not whole", i, (int)sequence);
            missing += nodes == 1 ? check_local(chunk, 0, &chunk->stages[TRACE_LOCAL_SUM])
                                  : check_shared(chunk, seen->node, &owned);
        }
        EXPECT_MSG(nodes == 1 || owned == chunk_count() / 2, "%u chunks are this node's", owned);
    }
    /* Where a worker had no room to tell of one it says so. */
    EXPECT_MSG(missing <= head_number(seen, "left_out"), "%d copies out are missing", missing);
}

/* --- tests ------------------------------------------------------------------------------------ */

START_TEST(test_one_node)
{
    char path[512];
    start_job(1);
    trace_end(trace_start(0, "perf", "0.5", file_name("one.json", path)), 0, "local sum", "");
    struct seen seen = see(path, 0);
    check_all(&seen, 1);
    ck_assert_str_eq(
        json_string_value(json_object_get(json_object_get(seen.document, "otherData"), "end")),
        "time");
    unsee(&seen);
}
END_TEST

START_TEST(test_two_nodes)
{
    char paths[2][512];
    struct process *processes[2];
    struct seen seen[2];
    start_job(2);
    for (uint32_t node = 0; node < 2; node++)
        processes[node] =
            trace_start(node, "perf", "1", file_name(node ? "b.json" : "a.json", paths[node]));
    for (uint32_t node = 0; node < 2; node++)
        trace_end(processes[node], 0, "owner's sum", "");
    for (uint32_t node = 0; node < 2; node++) {
        seen[node] = see(paths[node], node);
        check_all(&seen[node], 2);
    }
    /* The traces go together: they have other processes, the same zero, and what one node sends the
     * other sums later, but for the microseconds by which two readings of the time of day
     * differ. */
    ck_assert_int_ne(seen[0].pid, seen[1].pid);
    ck_assert_int_eq(head_number(&seen[0], "base_unix_s"), head_number(&seen[1], "base_unix_s"));
    int compared = 0;
    for (uint32_t node = 0; node < 2; node++) {
        for (json_int_t sequence = 0; sequence < SEQUENCES_MAX; sequence++) {
            for (uint32_t i = 0; i < chunk_count(); i++) {
                const struct chunk_seen *here = &seen[node].chunks[sequence][i];
                const struct chunk_seen *there = &seen[1 - node].chunks[sequence][i];
                const struct span *sent = &here->stages[TRACE_SEND];
                const struct span *summed = &there->stages[TRACE_OWNER_SUM];
                /* A stage that began before a trace has the trace's beginning. */
                if (sent->count == 0 || summed->count == 0 || here->edge || there->edge)
                    continue;
                compared++;
                EXPECT_MSG(sent->begin_ns <= summed->end_ns + 1000000,
                           "chunk %u of %d: sent at %lld, summed before %lld", i, (int)sequence,
                           (long long)sent->begin_ns, (long long)summed->end_ns);
            }
        }
    }
    ck_assert_int_gt(compared, 0);
    unsee(&seen[0]);
    unsee(&seen[1]);
}
END_TEST

START_TEST(test_to_stdout)
{
    start_job(1);
    struct process *process = trace_start(0, "perf", "0.05", "-");
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    json_t *document = json_loads(process_output(process), 0, NULL);
    ck_assert_ptr_nonnull(document);
    json_decref(document);
    ck_assert_ptr_nonnull(strstr(process_errors(process), "of job 'perf' on node"));
    process_free(process);
}
END_TEST

START_TEST(test_what_cannot_be_traced)
{
    const char *argv[] = {CLUSTER_BIN "shoalperf", "barrier", "-n", "1000000", NULL};
    char path[512];
    cluster = cluster_start(2, NULL);
    ranks[0] = cluster_worker(cluster, 0, "solo", 0, 1, argv);
    rank_count = 1;
    ck_assert(cluster_wait_status(cluster, 0, job_runs, CLUSTER_PATIENCE_MS));
    file_name("none.json", path);
    trace_end(trace_start(0, "perf", "1", path), 1, "",
              "node node0 has no part in a job 'perf' (it has: 'solo')");
    trace_end(trace_start(1, "solo", "1", path), 1, "", "node node1 has no part in a job 'solo'");
    ck_assert_int_ne(access(path, F_OK), 0);
    trace_end(trace_start(0, "solo", "0.01", "/nonexistent/trace.json"), 1, "",
              "cannot write /nonexistent/trace.json");
    end_ranks();
    ck_assert_int_eq(cluster_stop(cluster), 0);
}
END_TEST

/* Start a trace, and wait until it has begun. */
static struct process *trace_begun(const char *path)
{
    struct process *process = trace_start(0, "perf", "60", path);
    ck_assert(cluster_wait_log(cluster, 0, "of job 'perf' for 60000 ms", CLUSTER_PATIENCE_MS));
    return process;
}

START_TEST(test_one_at_a_time_and_a_client_that_goes)
{
    char path[512];
    start_job(1);
    struct process *first = trace_begun(file_name("first.json", path));
    trace_end(trace_start(0, "perf", "0.01", file_name("second.json", path)), 1, "",
              "one at a time");
    process_free(first); /* killed */
    /* The daemon hears of it when it does. */
    int64_t until = process_now_ms() + CLUSTER_PATIENCE_MS;
    int code = 1;
    while (code != 0 && process_now_ms() < until) {
        struct process *next = trace_start(0, "perf", "0.01", path);
        code = process_wait(next, CLUSTER_PATIENCE_MS);
        process_free(next);
    }
    ck_assert_int_eq(code, 0);
}
END_TEST

START_TEST(test_a_job_that_ends)
{
    char path[512];
    start_job(1);
    struct process *process = trace_begun(file_name("ends.json", path));
    end_ranks();
    trace_end(process, 0, "it ends before its time: job ", "");
    struct seen seen = see(path, 0);
    unsee(&seen);
    ck_assert_int_eq(cluster_stop(cluster), 0);
}
END_TEST

START_TEST(test_a_daemon_that_drains)
{
    char path[512];
    start_job(1);
    struct process *process = trace_begun(file_name("drains.json", path));
    process_signal(cluster->nodes[0].daemon, SIGTERM);
    trace_end(process, 0, "it ends before its time: ", "");
    struct seen seen = see(path, 0);
    unsee(&seen);
    ck_assert_int_eq(process_wait(cluster->nodes[0].daemon, CLUSTER_PATIENCE_MS), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace");
    TCase *tests = tcase_create("trace");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_one_node);
    tcase_add_test(tests, test_two_nodes);
    tcase_add_test(tests, test_to_stdout);
    tcase_add_test(tests, test_what_cannot_be_traced);
    tcase_add_test(tests, test_one_at_a_time_and_a_client_that_goes);
    tcase_add_test(tests, test_a_job_that_ends);
    tcase_add_test(tests, test_a_daemon_that_drains);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
