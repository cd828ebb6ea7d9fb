/* The data path as it runs: an engine with its threads, and real arenas. */
#include <poll.h>
#include <string.h>

#include "common/reduce/dtype.h"
#include "common/reduce/reduce.h"
#include "server/engine/engine_private.h"
#include "tests/lib/server/engine_fixture.h"
#include "tests/lib/suite.h"

/* --- one engine ------------------------------------------------------------------------------- */

static const uint32_t all_here[] = {0, 0, 0};

struct alone {
    struct node node;
    struct worker workers[3];
    uint32_t count;
    int descriptors; /* before */
};

static void alone_start(struct alone *alone, uint32_t workers, uint32_t threads, uint32_t late_ms)
{
    *alone = (struct alone){.count = workers, .descriptors = descriptor_count()};
    node_configure(&alone->node, 0, 1, threads);
    alone->node.config.late_ms = late_ms;
    node_start(&alone->node);
    open_job(&alone->node, 1, all_here, workers);
    for (uint32_t rank = 0; rank < workers; rank++)
        worker_attach(&alone->workers[rank], &alone->node, rank);
    node_settle(&alone->node);
}

static void alone_stop(struct alone *alone)
{
    engine_stop(alone->node.engine);
    for (uint32_t rank = 0; rank < alone->count; rank++)
        worker_release(&alone->workers[rank]);
    ck_assert_int_eq(descriptor_count(), alone->descriptors);
}

START_TEST(ranks_of_one_node_reduce)
{
    struct alone alone;
    alone_start(&alone, 3, (uint32_t)_i, 60000);
    static const uint64_t sizes[] = {1, 16, 1000, 1024, 30000, 400000, 0, 7};
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < 8; i++) {
        reduce_once(alone.workers, 3, i, sizes[i]);
        bytes += sizes[i] * sizeof(float);
    }
    struct engine_status status = node_status(&alone.node, 8);
    ck_assert_uint_eq(status.collectives, 8);
    ck_assert_uint_eq(status.bytes_reduced, 3 * bytes);
    ck_assert_uint_eq(status.workers, 3);
    ck_assert_uint_eq(status.bytes_in + status.bytes_out, 0);
    ck_assert_uint_eq(status.dropped_messages, 0);
    ck_assert_uint_eq(status.buffer_bytes_limit, 16 << 20);
    ck_assert_uint_eq(status.buffer_bytes_used, 0);
    ck_assert_uint_eq(status.peer_count, 1);
    ck_assert_uint_eq(status.job_count, 1);
    ck_assert_uint_eq(status.jobs[0].job, JOB);
    ck_assert_uint_eq(status.jobs[0].collectives, 8);
    ck_assert_uint_eq(status.jobs[0].bytes_submitted, 3 * bytes);
    ck_assert_uint_eq(status.jobs[0].groups, 1);
    ck_assert_uint_ne(status.jobs[0].slowest_rank, UINT32_MAX);
    ck_assert_uint_gt(status.now_ns, 0);
    engine_status_clear(&status);
    alone_stop(&alone);
}
END_TEST

/* A reduction that takes longer than engine_stop is willing to wait: its memory stays until it is
 * done, which the sanitizers see. */
START_TEST(stopping_waits_for_reductions)
{
    struct alone alone;
    alone_start(&alone, 3, (uint32_t)_i, 60000);
    alone.node.engine->stop_ns = 0;
    for (uint64_t sequence = 0; sequence < 5; sequence++) {
        for (uint32_t rank = 0; rank < 3; rank++)
            worker_submit(&alone.workers[rank], sequence, 400000);
    }
    alone_stop(&alone);
}
END_TEST

START_TEST(groups_open_close_and_are_refused)
{
    struct alone alone;
    alone_start(&alone, 2, 0, 60000);
    uint32_t ranks[] = {1, 0};
    give(alone.node.engine, .kind = COMMAND_GROUP_OPEN, .job = JOB, .group = 7,
         .members = {ranks, 2});
    struct engine_event *event = node_event(&alone.node, ENGINE_GROUP_OPENED);
    ck_assert_uint_eq(event->job, JOB);
    ck_assert_uint_eq(event->group, 7);
    ck_assert_int_eq(event->code, 0);
    engine_event_free(event);
    give(alone.node.engine, .kind = COMMAND_GROUP_OPEN, .job = JOB, .group = 7,
         .members = {ranks, 2});
    event = node_event(&alone.node, ENGINE_GROUP_OPENED);
    ck_assert_int_eq(event->code, ERR_STATE);
    ck_assert_str_eq(event->text, "group 7 is open already");
    engine_event_free(event);
    give(alone.node.engine, .kind = COMMAND_GROUP_CLOSE, .job = JOB, .group = 7);
    give(alone.node.engine, .kind = COMMAND_GROUP_OPEN, .job = JOB, .group = 7,
         .members = {ranks, 2});
    node_expect(&alone.node, ENGINE_GROUP_OPENED, 0);
    struct engine_job again = {.job = JOB,
                               .world_size = 2,
                               .rank_nodes = all_here,
                               .server_count = 1,
                               .server_nodes = all_here,
                               .server_weights = ranks};
    give(alone.node.engine, .kind = COMMAND_JOB_OPEN, .job = JOB, .roster = &again);
    event = node_event(&alone.node, ENGINE_JOB_OPENED);
    ck_assert_uint_eq(event->job, JOB);
    ck_assert_int_eq(event->code, ERR_STATE);
    ck_assert_ptr_nonnull(strstr(event->text, "is open already"));
    engine_event_free(event);
    alone_stop(&alone);
}
END_TEST

/* --- workers that misbehave ------------------------------------------------------------------- */

static void expect_worker_failed(struct node *node, uint32_t rank, int code, const char *words)
{
    struct engine_event *event = node_event(node, ENGINE_WORKER_FAILED);
    ck_assert_uint_eq(event->job, JOB);
    ck_assert_uint_eq(event->rank, rank);
    ck_assert_int_eq(event->code, code);
    ck_assert_msg(strstr(event->text, words) != NULL, "%s", event->text);
    engine_event_free(event);
}

START_TEST(nonsense_in_a_ring_is_reported)
{
    struct alone alone;
    alone_start(&alone, 3, 0, 60000);
    struct arena_submission nonsense = {.type = 77};
    worker_push(&alone.workers[1], &nonsense);
    expect_worker_failed(&alone.node, 1, ERR_PROTOCOL, "submission type 77 does not exist");
    /* it is read no more, and so reported once */
    worker_push(&alone.workers[1], &nonsense);
    /* a tail that is ahead of what the ring can hold */
    struct arena_header *header = (struct arena_header *)(void *)alone.workers[2].arena.base;
    atomic_store(&header->submission_tail, 1000);
    ring(alone.workers[2].submission_doorbell);
    expect_worker_failed(&alone.node, 2, 0, "its submission ring makes no sense");
    node_settle(&alone.node);
    ck_assert_ptr_null(engine_next_event(alone.node.engine));
    alone_stop(&alone);
}
END_TEST

START_TEST(a_worker_that_reads_nothing_is_reported)
{
    struct alone alone;
    alone_start(&alone, 1, 0, 60000);
    struct worker *worker = &alone.workers[0];
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    for (uint64_t sequence = 0; sequence < 33; sequence++) { /* one more than completions fit */
        while (arena_submission_room(&worker->arena) == 0) {
            poll(NULL, 0, 1);
            EXPECT(clock_now_ns() < end_ns);
        }
        worker_submit(worker, sequence, 1);
    }
    expect_worker_failed(&alone.node, 0, 0, "it lets its completion ring overflow");
    alone_stop(&alone);
}
END_TEST

/* Nothing of it is mapped any more. */
static void expect_released(struct node *node, uint32_t rank)
{
    struct engine_event *event = node_event(node, ENGINE_WORKER_RELEASED);
    ck_assert_uint_eq(event->job, JOB);
    ck_assert_uint_eq(event->rank, rank);
    ck_assert_uint_eq(event->worker, 100 + rank);
    engine_event_free(event);
}

START_TEST(attaching_what_does_not_belong_is_reported)
{
    struct alone alone;
    alone_start(&alone, 1, 0, 60000);
    struct worker other;
    worker_attach(&other, &alone.node, 0); /* a second one with its rank */
    expect_worker_failed(&alone.node, 0, ERR_STATE, "rank 0 is not of this node, or attached");
    expect_released(&alone.node, 0);
    worker_release(&other);
    worker_attach(&other, &alone.node, 5);
    expect_worker_failed(&alone.node, 5, ERR_STATE, "rank 5");
    expect_released(&alone.node, 5);
    worker_release(&other);
    reduce_once(alone.workers, 1, 0, 100); /* the first one is unharmed */
    alone_stop(&alone);
}
END_TEST

/* --- ends ------------------------------------------------------------------------------------- */

START_TEST(a_detached_worker_has_been_read_to_the_end)
{
    struct alone alone;
    alone_start(&alone, 2, 1, 60000);
    for (uint64_t sequence = 0; sequence < 5; sequence++)
        EXPECT(arena_push_submission(&alone.workers[0].arena,
                                     &(struct arena_submission){.type = ARENA_SUBMIT,
                                                                .kind = COLLECTIVE_BARRIER,
                                                                .sequence = sequence}));
    give(alone.node.engine, .kind = COMMAND_WORKER_DETACH, .job = JOB,
         .rank = 0); /* no doorbell was rung */
    struct engine_event *event = node_event(&alone.node, ENGINE_WORKER_DETACHED);
    ck_assert_uint_eq(event->job, JOB);
    ck_assert_uint_eq(event->rank, 0);
    ck_assert_uint_eq(event->position_count, 1);
    ck_assert_uint_eq(event->positions[0].group, 0);
    ck_assert_uint_eq(event->positions[0].sequences, 5);
    engine_event_free(event);
    give(alone.node.engine, .kind = COMMAND_WORKER_DETACH, .job = JOB,
         .rank = 0); /* once is enough */
    give(alone.node.engine, .kind = COMMAND_WORKER_DETACH, .job = JOB, .rank = 9);
    give(alone.node.engine, .kind = COMMAND_WORKER_DETACH, .job = 1, .rank = 0);
    give(alone.node.engine, .kind = COMMAND_RANK_DEPARTED, .job = JOB, .departed = {0, 5});
    for (uint64_t sequence = 0; sequence < 6; sequence++) {
        struct arena_submission it = {.type = ARENA_SUBMIT,
                                      .kind = COLLECTIVE_BARRIER,
                                      .request = sequence,
                                      .sequence = sequence};
        worker_push(&alone.workers[1], &it);
        if (sequence < 5)
            worker_wait(&alone.workers[1], sequence);
    }
    event = node_event(&alone.node, ENGINE_GROUP_FAILED);
    ck_assert_int_eq(event->code, ERR_LOST);
    ck_assert_str_eq(event->text, "rank 0 has left job 'train' after 5 collectives of group 0");
    engine_event_free(event);
    alone_stop(&alone);
}
END_TEST

START_TEST(a_failed_job_is_silent_and_a_closed_one_gone)
{
    struct alone alone;
    alone_start(&alone, 2, 1, 60000);
    reduce_once(alone.workers, 2, 0, 5000);
    worker_submit(&alone.workers[0], 1, 5000);
    give(alone.node.engine, .kind = COMMAND_JOB_FAIL, .job = JOB);
    node_settle(&alone.node);
    worker_submit(&alone.workers[1], 1, 5000);
    node_settle(&alone.node);
    struct arena_completion completion;
    ck_assert(!arena_pop_completion(&alone.workers[0].arena, &completion));
    ck_assert(!arena_pop_completion(&alone.workers[1].arena, &completion));
    int attached = descriptor_count();
    give(alone.node.engine, .kind = COMMAND_JOB_CLOSE, .job = JOB);
    expect_released(&alone.node, 1);
    expect_released(&alone.node, 0);
    node_settle(&alone.node);
    ck_assert_int_eq(descriptor_count(), attached - 4); /* its doorbells are closed */
    ck_assert_ptr_null(engine_next_event(alone.node.engine));
    /* the same number may be used again */
    open_job(&alone.node, 1, all_here, 2);
    alone_stop(&alone);
}
END_TEST

START_TEST(draining_waits_for_what_is_in_progress)
{
    struct alone alone;
    alone_start(&alone, 2, 1, 60000);
    worker_submit(&alone.workers[0], 0, 1000);
    /* nothing but the query's answer: so it is being waited for */
    struct engine_event *event;
    do {
        give(alone.node.engine, .kind = COMMAND_LATE_QUERY, .job = JOB);
        event = node_event(&alone.node, ENGINE_LATE);
        uint32_t missing = event->rank_count;
        if (missing == 1)
            ck_assert_uint_eq(event->ranks[0], 1);
        engine_event_free(event);
        if (missing == 1)
            break;
    } while (true);
    give(alone.node.engine, .kind = COMMAND_DRAIN);
    give(alone.node.engine, .kind = COMMAND_LATE_QUERY, .job = JOB);
    engine_event_free(node_event(&alone.node, ENGINE_LATE));
    ck_assert_ptr_null(engine_next_event(alone.node.engine));
    worker_submit(&alone.workers[1], 0, 1000);
    node_expect(&alone.node, ENGINE_IDLE, 0);
    for (uint32_t rank = 0; rank < 2; rank++)
        worker_wait(&alone.workers[rank], 1000);
    alone_stop(&alone);
}
END_TEST

START_TEST(late_ranks_are_reported)
{
    struct alone alone;
    alone_start(&alone, 2, 0, 100);
    worker_submit(&alone.workers[1], 0, 10);
    struct engine_event *event = node_event(&alone.node, ENGINE_LATE);
    ck_assert_uint_eq(event->job, JOB);
    ck_assert_uint_eq(event->group, 0);
    ck_assert_uint_eq(event->sequence, 0);
    ck_assert_uint_eq(event->rank_count, 1);
    ck_assert_uint_eq(event->ranks[0], 0);
    ck_assert_uint_eq(event->node_count, 0);
    engine_event_free(event);
    worker_submit(&alone.workers[0], 0, 10);
    worker_wait(&alone.workers[0], 1000);
    worker_wait(&alone.workers[1], 1000);
    alone_stop(&alone);
}
END_TEST

/* --- starting --------------------------------------------------------------------------------- */

static void expect_no_start(struct node *node, int code, const char *words)
{
    int before = descriptor_count();
    struct error error = {0};
    struct engine *untouched = NULL;
    int result = engine_start(&untouched, &node->config, NULL, &node->log, &error);
    ck_assert_msg(result == code && error.code == code, "%d: %s", result, error.text);
    ck_assert_msg(strstr(error.text, words) != NULL, "%s", error.text);
    ck_assert_ptr_null(untouched);
    ck_assert_int_le(descriptor_count(), before + 1);
}

/* Pictures are made and copied while jobs come and go. */
START_TEST(pictures_follow_the_jobs)
{
    struct node node;
    node_configure(&node, 0, 1, 0);
    node_start(&node);
    const uint32_t here = 0, one = 1;
    struct engine_job job = {.name = "one",
                             .world_size = 1,
                             .rank_nodes = &here,
                             .server_count = 1,
                             .server_nodes = &here,
                             .server_weights = &one};
    static const uint32_t counts[] = {0, 5, 1, 7};
    for (int round = 0; round < 4; round++) {
        uint32_t jobs = counts[round];
        for (uint32_t i = 0; i < jobs; i++) {
            job.job = 100 + i;
            give(node.engine, .kind = COMMAND_JOB_OPEN, .job = job.job, .roster = &job);
            node_expect(&node, ENGINE_JOB_OPENED, 0);
        }
        struct engine_status status = {0};
        uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
        do {
            engine_status_clear(&status);
            EXPECT(engine_status(node.engine, &status) == 0);
            EXPECT(status.peer_count == 1 && status.job_count <= jobs);
            for (uint32_t i = 0; i < status.job_count; i++)
                EXPECT(status.jobs[i].job >= 100 && status.jobs[i].job < 100 + jobs);
            EXPECT(clock_now_ns() < end_ns);
            poll(NULL, 0, 1);
        } while (status.job_count < jobs);
        engine_status_clear(&status);
        for (uint32_t i = 0; i < jobs; i++)
            give(node.engine, .kind = COMMAND_JOB_CLOSE, .job = 100 + i);
        node_settle(&node);
        status = node_status(&node, 0);
        while (status.job_count > 0) {
            engine_status_clear(&status);
            poll(NULL, 0, 10);
            status = node_status(&node, 0);
            EXPECT(clock_now_ns() < end_ns);
        }
        engine_status_clear(&status);
    }
    engine_stop(node.engine);
}
END_TEST

START_TEST(what_cannot_start_says_why)
{
    struct node node;
    node_configure(&node, 0, 1, 0);
    strcpy(node.config.isa, "mmx");
    expect_no_start(&node, ERR_CONFIG, "\"mmx\" is not known");
    node_configure(&node, 0, 1, 0);
    strcpy(node.config.provider, "carrier-pigeon");
    struct error error = {0};
    struct engine *engine = NULL;
    ck_assert_int_lt(engine_start(&engine, &node.config, NULL, &node.log, &error), 0);
    ck_assert_ptr_nonnull(strstr(error.text, "carrier-pigeon"));
    ck_assert_ptr_null(engine);
    engine_stop(NULL);
}
END_TEST

START_TEST(every_instruction_set_that_is_there_starts)
{
    static const char *const sets[] = {"scalar", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        struct node node;
        node_configure(&node, 0, 1, 2);
        strcpy(node.config.isa, sets[i]);
        enum reduce_isa isa;
        ck_assert_int_eq(reduce_isa_parse(sets[i], &isa), 0);
        if (!reduce_isa_supported(isa)) {
            expect_no_start(&node, ERR_UNSUPPORTED, "this machine has no");
            continue;
        }
        node_start(&node);
        const struct transport_info *info = engine_transport_info(node.engine);
        ck_assert_str_eq(info->provider, "tcp");
        ck_assert_str_eq(info->endpoint, "connected");
        ck_assert_str_eq(engine_instruction_set(node.engine), sets[i]);
        engine_stop(node.engine);
    }
}
END_TEST

static TCase *one_engine(void)
{
    TCase *tests = tcase_create("one engine");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, ranks_of_one_node_reduce, 0, 3);
    tcase_add_loop_test(tests, stopping_waits_for_reductions, 0, 3);
    tcase_add_test(tests, groups_open_close_and_are_refused);
    tcase_add_test(tests, nonsense_in_a_ring_is_reported);
    tcase_add_test(tests, a_worker_that_reads_nothing_is_reported);
    tcase_add_test(tests, attaching_what_does_not_belong_is_reported);
    tcase_add_test(tests, a_detached_worker_has_been_read_to_the_end);
    tcase_add_test(tests, a_failed_job_is_silent_and_a_closed_one_gone);
    tcase_add_test(tests, draining_waits_for_what_is_in_progress);
    tcase_add_test(tests, late_ranks_are_reported);
    tcase_add_test(tests, pictures_follow_the_jobs);
    tcase_add_test(tests, what_cannot_start_says_why);
    tcase_add_test(tests, every_instruction_set_that_is_there_starts);
    return tests;
}

int main(void)
{
    transport_prepare_environment();
    Suite *suite = suite_create("engine");
    suite_add_tcase(suite, one_engine());
    return suite_main(suite);
}
