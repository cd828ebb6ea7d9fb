/* Failing, closing and leaving with things under way; late ranks; memory. */
#include "server/exchange_private.h"
#include "tests/lib/exchange_fixture.h"
#include "tests/lib/suite.h"

#define COUNT FIXTURE_CHUNK

static uint32_t node_of_server(const struct fixture_options *options)
{
    for (uint32_t i = 0; i < options->nodes; i++) {
        if (options->weights[i] > 0)
            return i;
    }
    return 0;
}

/* Ranks 0 and 1 here, 2 on node 1. */
static struct fixture *two_and_one(uint32_t server)
{
    struct fixture_options options = {.nodes = 2, .ranks = 3, .rank_nodes = {0, 0, 1}};
    options.weights[server] = 1;
    return fixture_create(&options);
}

/* Several collectives in all stages: gathered, being summed, sent, answered, delivered. */
static void begin_some(struct fixture *fixture)
{
    bool owner = node_of_server(&fixture->options) == 0;
    for (uint64_t sequence = 0; sequence < 6; sequence++) {
        fixture_submit_sum(fixture, 0, sequence, COUNT);
        if (sequence < 5)
            fixture_submit_sum(fixture, 1, sequence, COUNT);
    }
    fixture_reduce(fixture, 0);
    fixture_reduce(fixture, 1);
    for (uint64_t sequence = 0; sequence < 2 && owner; sequence++)
        ck_assert_int_eq(fixture_contribute(fixture, 1, sequence, 0, COUNT, 1), 0);
    if (!owner)
        ck_assert_int_eq(fixture_result(fixture, 1, 0, 0, COUNT, 1), 0);
    ck_assert_uint_gt(fixture->task_count, 0);
    ck_assert(owner || fixture->send_count > 0);
}

static bool attached(const struct fixture *fixture)
{
    return fixture->attached[0] || fixture->attached[1];
}

/* Gives everything back in an order drawn from the seed; `held` tells when something may still be
 * freed only after the last one. */
static void give_back(struct fixture *fixture, unsigned seed, bool workers_wait)
{
    while (fixture->send_count + fixture->task_count > 0) {
        ck_assert(attached(fixture) || !workers_wait);
        seed = seed * 1103515245u + 12345u;
        uint32_t pick = (seed >> 16) % (fixture->send_count + fixture->task_count);
        if (pick < fixture->send_count)
            fixture_sent(fixture, pick);
        else
            fixture_reduce(fixture, pick - fixture->send_count);
    }
}

/* --- failing and closing ---------------------------------------------------------------------- */

START_TEST(a_failed_job_moves_no_more)
{
    struct fixture *fixture = two_and_one(_i % 2);
    begin_some(fixture);
    fixture->completion_count = 0;
    exchange_job_fail(fixture->exchange, FIXTURE_JOB);
    uint32_t sends = fixture->send_count;
    exchange_job_fail(fixture->exchange, FIXTURE_JOB);
    fixture_run(fixture);
    struct arena_submission nonsense = {.type = 77, .group = 99};
    ck_assert_int_eq(fixture_submit(fixture, 0, &nonsense), 0); /* ignored, as all is */
    ck_assert_uint_eq(fixture->send_count, sends);
    give_back(fixture, (unsigned)_i, true);
    ck_assert_uint_eq(fixture->completion_count, 0);
    ck_assert_uint_eq(fixture->event_count, 0);
    ck_assert(attached(fixture)); /* until the job is closed */
    ck_assert(exchange_idle(fixture->exchange));
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.slots, 0);
    struct exchange_job_totals job;
    exchange_job_totals(fixture->exchange, &job, 1);
    ck_assert(job.failed);
    uint32_t ranks[] = {0, 1};
    fixture_expect_error(
        fixture, exchange_group_open(fixture->exchange, FIXTURE_JOB, 1, ranks, 2, &fixture->error),
        ERR_STATE, "job 0000000000000abc is not open");
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    ck_assert(!attached(fixture));
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_closed_jobs_memory_goes_when_nothing_touches_it)
{
    struct fixture *fixture = two_and_one(_i % 2);
    begin_some(fixture);
    fixture->completion_count = 0;
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    ck_assert(attached(fixture));
    ck_assert_ptr_null(exchange_find_worker(fixture->exchange, FIXTURE_JOB, 0));
    /* what comes for it is dropped; the same job may be opened again meanwhile */
    ck_assert_int_eq(fixture_contribute(fixture, 1, 3, 0, COUNT, 1), 0);
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.dropped_messages, 1);
    ck_assert_int_eq(fixture_open_job(fixture, FIXTURE_JOB), 0);
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.jobs, 2);
    give_back(fixture, (unsigned)_i, true);
    ck_assert(!attached(fixture));
    ck_assert_uint_eq(fixture->completion_count, 0);
    ck_assert_uint_eq(fixture->event_count, 0);
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.jobs, 1);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(an_idle_job_closes_at_once)
{
    struct fixture *fixture = two_and_one(0);
    exchange_job_close(fixture->exchange, 0x777); /* unknown */
    exchange_job_fail(fixture->exchange, 0x777);
    ck_assert(attached(fixture));
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    ck_assert(!attached(fixture));
    fixture_destroy(fixture);
}
END_TEST

/* A group that failed or was closed leaves the others of the job alone. */
START_TEST(one_group_ends_and_another_goes_on)
{
    struct fixture *fixture = two_and_one(0);
    uint32_t ranks[] = {1, 0};
    ck_assert_int_eq(exchange_group_open(fixture->exchange, FIXTURE_JOB, 4, ranks, 2, NULL), 0);
    begin_some(fixture);
    exchange_group_close(fixture->exchange, FIXTURE_JOB, 0);
    exchange_group_close(fixture->exchange, FIXTURE_JOB, 0);
    struct arena_submission it = fixture_ask(fixture, 0, 6, COUNT);
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL,
                         "group 0 is not one of rank 0");
    fixture->completion_count = 0;
    give_back(fixture, 1, true);
    ck_assert_uint_eq(fixture->completion_count, 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        it = fixture_ask(fixture, rank, 0, COUNT);
        it.group = 4;
        ck_assert_int_eq(fixture_submit(fixture, rank, &it), 0);
    }
    /* in the group's order of ranks, not the job's */
    ck_assert_ptr_eq(fixture->tasks[0]->in[0], fixture_data(fixture, 1, 0));
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 0, 100) && fixture_completed(fixture, 1, 100));
    ck_assert_int_eq(exchange_group_open(fixture->exchange, FIXTURE_JOB, 0, ranks, 2, NULL), 0);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(disagreeing_nodes_are_all_told)
{
    struct fixture *fixture = two_and_one(0);
    for (uint32_t rank = 0; rank < 2; rank++)
        fixture_submit_sum(fixture, rank, 0, COUNT);
    fixture_reduce(fixture, 0);
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, 16, 1), 0);
    ck_assert_uint_eq(fixture->send_count, 1);
    struct wire_header header = fixture_sending(fixture, 0);
    ck_assert_uint_eq(header.type, WIRE_ERROR);
    ck_assert_int_eq(header.status, ERR_MISMATCH);
    static const char text[] = "the ranks disagree on collective 0 of group 0: ranks 0, 1 asked "
                               "for all_reduce sum float count 64; rank 2 asked for all_reduce sum "
                               "float count 16";
    ck_assert_uint_eq(header.payload_bytes, strlen(text));
    ck_assert_mem_eq(fixture->sends[0]->payload, text, strlen(text));
    fixture_expect_failure(fixture, ERR_MISMATCH, text);
    fixture_all_sent(fixture);
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.slots, 0);
    fixture_destroy(fixture);
}
END_TEST

/* A peer that gives chunk 0 one ask and a later chunk another. */
START_TEST(a_peer_that_changes_its_mind_is_named)
{
    struct fixture_options options = {
        .nodes = 3, .ranks = 3, .rank_nodes = {0, 1, 2}, .weights = {1}};
    struct fixture *fixture = fixture_create(&options);
    fixture_submit_sum(fixture, 0, 0, 2 * COUNT);
    for (uint32_t node = 1; node < 3; node++)
        ck_assert_int_eq(fixture_contribute(fixture, node, 0, 0, 2 * COUNT, 1), 0);
    fixture_all_reduced(fixture);
    fixture_all_sent(fixture);
    uint32_t odd = 1 + (uint32_t)_i;
    for (uint32_t node = 1; node < 3; node++) {
        ck_assert_uint_eq(fixture->event_count, 0);
        uint64_t count = node == odd ? 3 * COUNT : 2 * COUNT;
        ck_assert_int_eq(fixture_contribute(fixture, node, 0, 1, count, 1), 0);
    }
    ck_assert_uint_eq(fixture->send_count, 2);
    ck_assert_uint_eq(fixture_sending(fixture, 0).type, WIRE_ERROR);
    fixture_expect_failure(fixture, ERR_MISMATCH,
                           odd == 1
                               ? "node b differs from node a in chunk 1; the ranks disagree on "
                                 "collective 0 of group 0: ranks 0, 2 asked for all_reduce "
                                 "sum float count 128; rank 1 asked for"
                               : "node c differs from node a in chunk 1; the ranks disagree");
    fixture_all_sent(fixture);
    ck_assert(exchange_idle(fixture->exchange));
    fixture_destroy(fixture);
}
END_TEST

/* A disagreement that another node reports about its own ranks; asks that make no sense are passed
 * over. */
START_TEST(a_nodes_own_disagreement_is_reported_by_the_owner)
{
    struct fixture_options options = {
        .nodes = 2, .ranks = 3, .rank_nodes = {0, 1, 1}, .weights = {1}};
    struct fixture *fixture = fixture_create(&options);
    uint8_t payload[4 * WIRE_RANK_ASK_BYTES];
    struct wire_ask first = {.kind = COLLECTIVE_BARRIER};
    struct wire_ask second = {
        .kind = COLLECTIVE_BROADCAST, .dtype = DTYPE_U8, .root = 2, .count = 9};
    wire_encode_rank_ask(payload, 1, &first);
    wire_encode_rank_ask(payload + 24, 2, &second);
    wire_encode_rank_ask(payload + 48, 3, &second); /* no such rank */
    wire_encode_rank_ask(payload + 72, 0, &second);
    payload[72 + 7] = 1; /* reserved */
    struct wire_header header = fixture_header(1, WIRE_DISAGREE, 0, 0, COUNT);
    ck_assert_int_eq(fixture_message(fixture, 1, header, payload, sizeof(payload)), 0);
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    fixture_expect_failure(fixture, ERR_MISMATCH,
                           "rank 0 asked for all_reduce sum float count 64; rank 1 asked for "
                           "barrier; rank 2 asked for broadcast uint8 count 9 root 2");
    ck_assert_uint_eq(fixture->send_count, 1);
    fixture_destroy(fixture);
}
END_TEST

/* Nodes hear of it over the control connection. */
START_TEST(without_memory_for_a_message_the_group_fails)
{
#ifdef SHOAL_SANITIZED
    suite_skip("without_memory_for_a_message_the_group_fails",
               "sanitizers end what malloc refuses");
    return;
#endif
    struct fixture *fixture = two_and_one((uint32_t)_i);
    struct slab *sends = &fixture->exchange->sends;
    struct slab kept = *sends;
    *sends = (struct slab){.object_bytes = SIZE_MAX / 64}; /* more than malloc gives */
    for (uint32_t rank = 0; rank < 2; rank++)
        fixture_submit_sum(fixture, rank, 0, COUNT);
    fixture_all_reduced(fixture);
    if (_i == 0) { /* this node is the owner: it fails to send the result */
        ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 1), 0);
        fixture_all_reduced(fixture);
    }
    fixture_expect_failure(fixture, ERR_MEMORY, "no memory for a message to another node");
    ck_assert_uint_eq(fixture->send_count, 0);
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_run(fixture);
    *sends = kept;
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.slots, 0);
    ck_assert(exchange_idle(fixture->exchange));
    fixture_destroy(fixture);
}
END_TEST

/* --- leaving ---------------------------------------------------------------------------------- */

START_TEST(a_rank_that_left_is_missed_by_what_it_did_not_submit)
{
    struct fixture *fixture = two_and_one(1);
    exchange_rank_left(fixture->exchange, FIXTURE_JOB, 0, 2, 2);
    exchange_rank_left(fixture->exchange, FIXTURE_JOB, 0, 2, 5); /* not earlier: nothing new */
    exchange_rank_left(fixture->exchange, FIXTURE_JOB, 9, 2, 0); /* no such group */
    exchange_rank_left(fixture->exchange, 0x777, 0, 2, 0);
    for (uint64_t sequence = 0; sequence < 2; sequence++) {
        for (uint32_t rank = 0; rank < 2; rank++)
            fixture_submit_sum(fixture, rank, sequence, COUNT);
        fixture_all_reduced(fixture);
        fixture_all_sent(fixture);
        ck_assert_int_eq(fixture_result(fixture, 1, sequence, 0, COUNT, 1), 0);
        fixture_all_reduced(fixture);
        ck_assert(fixture_completed(fixture, 0, 100 + sequence));
    }
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_submit_sum(fixture, 0, 2, COUNT); /* one local rank is enough */
    fixture_expect_failure(fixture, ERR_LOST,
                           "rank 2 has left job 'train' after 2 collectives of group 0");
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_rank_leaves_while_others_wait_for_it)
{
    struct fixture *fixture = two_and_one(0);
    for (uint64_t sequence = 0; sequence < 3; sequence++) {
        for (uint32_t rank = 0; rank < 2; rank++)
            fixture_submit_sum(fixture, rank, sequence, COUNT);
    }
    ck_assert_uint_eq(fixture->event_count, 0);
    exchange_rank_left(fixture->exchange, FIXTURE_JOB, 0, 2, 3);
    fixture_run(fixture);
    ck_assert_uint_eq(fixture->event_count, 0); /* it has submitted all that others have */
    exchange_rank_left(fixture->exchange, FIXTURE_JOB, 0, 1, 1);
    fixture_run(fixture);
    fixture_expect_failure(fixture, ERR_LOST, "rank 1 has left job 'train' after 1 collectives");
    give_back(fixture, 1, true);
    ck_assert_uint_eq(fixture->completion_count, 0);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_detached_worker_tells_how_far_it_got)
{
    struct fixture *fixture = two_and_one(0);
    uint32_t ranks[] = {0, 2}, others[] = {1, 2};
    ck_assert_int_eq(exchange_group_open(fixture->exchange, FIXTURE_JOB, 4, ranks, 2, NULL), 0);
    ck_assert_int_eq(exchange_group_open(fixture->exchange, FIXTURE_JOB, 5, others, 2, NULL), 0);
    for (uint64_t sequence = 0; sequence < 3; sequence++)
        fixture_submit_sum(fixture, 0, sequence, COUNT);
    fixture_submit_sum(fixture, 1, 0, COUNT);
    exchange_detach(fixture->exchange, &fixture->workers[0]);
    exchange_detach(fixture->exchange, &fixture->workers[0]);
    struct engine_event *event = fixture_event(fixture, ENGINE_WORKER_DETACHED);
    ck_assert_uint_eq(event->job, FIXTURE_JOB);
    ck_assert_uint_eq(event->rank, 0);
    ck_assert_uint_eq(event->position_count, 2);
    uint64_t found[6] = {9, 9, 9, 9, 9, 9};
    for (uint32_t i = 0; i < 2; i++)
        found[event->positions[i].group] = event->positions[i].sequences;
    ck_assert_uint_eq(found[0], 3);
    ck_assert_uint_eq(found[4], 0);
    engine_event_free(event);
    ck_assert_uint_eq(fixture->event_count, 0);
    /* its entries are not looked at any more, it is told nothing, and its data still counts */
    struct arena_submission nonsense = {.type = 77};
    ck_assert_int_eq(fixture_submit(fixture, 0, &nonsense), 0);
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 1), 0);
    fixture_all_reduced(fixture);
    fixture_all_sent(fixture);
    ck_assert(fixture_completed(fixture, 1, 100));
    ck_assert(!fixture_completed(fixture, 0, 100));
    ck_assert(attached(fixture));
    fixture_destroy(fixture);
}
END_TEST

START_TEST(attaching_is_checked)
{
    struct fixture *fixture = two_and_one(0);
    struct exchange_worker other = {.rank = 0};
    struct error *error = &fixture->error;
    struct exchange *exchange = fixture->exchange;
    fixture_expect_error(fixture, exchange_attach(exchange, FIXTURE_JOB, &other, error), ERR_STATE,
                         "rank 0 is not of this node, or attached");
    other.rank = 2;
    fixture_expect_error(fixture, exchange_attach(exchange, FIXTURE_JOB, &other, error), ERR_STATE,
                         "rank 2 is not of this node");
    other.rank = 3;
    fixture_expect_error(fixture, exchange_attach(exchange, FIXTURE_JOB, &other, error), ERR_STATE,
                         "rank 3 is not of this node");
    fixture_expect_error(fixture, exchange_attach(exchange, 1, &other, error), ERR_STATE,
                         "job 0000000000000001 is not open");
    ck_assert_ptr_eq(exchange_find_worker(exchange, FIXTURE_JOB, 1), &fixture->workers[1]);
    ck_assert_ptr_null(exchange_find_worker(exchange, FIXTURE_JOB, 2));
    ck_assert_ptr_null(exchange_find_worker(exchange, FIXTURE_JOB, 3));
    fixture_destroy(fixture);
}
END_TEST

/* --- opening ---------------------------------------------------------------------------------- */

START_TEST(rosters_are_checked)
{
    struct fixture *fixture = two_and_one(0);
    uint32_t nodes[] = {0, 1}, bad_nodes[] = {0, 2}, weights[] = {1, 1}, none[] = {1, 0};
    uint32_t heavy[] = {1, LAYOUT_MAX_WEIGHT + 1};
    const struct engine_job good = {.job = 5,
                                    .world_size = 2,
                                    .rank_nodes = nodes,
                                    .server_count = 2,
                                    .server_nodes = nodes,
                                    .server_weights = weights};
    struct engine_job jobs[7] = {good, good, good, good, good, good, good};
    jobs[0].job = FIXTURE_JOB;
    jobs[1].rank_nodes = bad_nodes;
    jobs[2].server_nodes = bad_nodes;
    jobs[3].server_weights = none;
    jobs[4].server_weights = heavy;
    jobs[5].world_size = 0;
    jobs[6].server_count = 0;
    static const char *const words[7] = {
        "is open already",      "rank 1 on unknown node 2",
        "server 1 of",          "server 1 of the job makes no sense",
        "server 1 of",          "0 ranks and 2 servers",
        "2 ranks and 0 servers"};
    for (int i = 0; i < 7; i++)
        fixture_expect_error(fixture,
                             exchange_job_open(fixture->exchange, &jobs[i], &fixture->error),
                             i == 0 ? ERR_STATE : ERR_INVALID, words[i]);
    ck_assert_int_eq(exchange_job_open(fixture->exchange, &good, &fixture->error), 0);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(groups_are_checked)
{
    struct fixture *fixture = two_and_one(0);
    uint32_t twice[] = {0, 1, 0}, unknown[] = {0, 3}, good[] = {2, 0};
    struct exchange *exchange = fixture->exchange;
    struct error *error = &fixture->error;
    fixture_expect_error(fixture, exchange_group_open(exchange, FIXTURE_JOB, 1, twice, 3, error),
                         ERR_INVALID, "rank 0 is not of the job, or twice");
    fixture_expect_error(fixture, exchange_group_open(exchange, FIXTURE_JOB, 1, unknown, 2, error),
                         ERR_INVALID, "rank 3 is not of the job");
    fixture_expect_error(fixture, exchange_group_open(exchange, FIXTURE_JOB, 0, good, 2, error),
                         ERR_STATE, "group 0 is open already");
    fixture_expect_error(fixture, exchange_group_open(exchange, 1, 1, good, 2, error), ERR_STATE,
                         "job 0000000000000001 is not open");
    ck_assert_int_eq(exchange_group_open(exchange, FIXTURE_JOB, 1, good, 2, error), 0);
    fixture_destroy(fixture);
}
END_TEST

/* --- memory ----------------------------------------------------------------------------------- */

/* Four nodes; this one owns all shards: window + 1 receives from each of three. */
static struct fixture_options four_nodes(uint64_t buffers)
{
    return (struct fixture_options){.nodes = 4,
                                    .ranks = 5,
                                    .rank_nodes = {0, 0, 1, 2, 3},
                                    .weights = {1},
                                    .buffers = buffers,
                                    .leave_closed = true};
}

START_TEST(a_job_beyond_the_memory_is_refused_and_takes_none)
{
    /* 4 sums and 15 receives are wanted */
    for (uint64_t buffers = 0; buffers < 19; buffers++) {
        struct fixture_options options = four_nodes(buffers ? buffers : 1);
        struct fixture *fixture = fixture_create(&options);
        fixture_expect_error(fixture, fixture_open_job(fixture, FIXTURE_JOB), ERR_MEMORY,
                             "the limit limits.memory_bytes is");
        ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 0);
        ck_assert_uint_eq(buffer_pool_used_bytes(fixture->pool), 0);
        ck_assert_uint_eq(fixture->posted_count, 0);
        struct exchange_totals totals;
        exchange_totals(fixture->exchange, &totals);
        ck_assert_uint_eq(totals.jobs, 0);
        exchange_check(fixture->exchange);
        fixture_destroy(fixture);
    }
    struct fixture_options options = four_nodes(19);
    struct fixture *fixture = fixture_create(&options);
    ck_assert_int_eq(fixture_open_job(fixture, FIXTURE_JOB), 0);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 19 * 320);
    for (uint32_t node = 1; node < 4; node++)
        ck_assert_uint_eq(fixture_posted(fixture, node), 5);
    fixture_expect_error(fixture, fixture_open_job(fixture, 0x777), ERR_MEMORY,
                         "bytes already promised");
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 19 * 320);
    fixture_destroy(fixture);
}
END_TEST

/* Receives that were posted cannot be taken back, and serve the next job. */
START_TEST(receives_of_a_closed_job_serve_the_next)
{
    struct fixture_options options = four_nodes(19);
    struct fixture *fixture = fixture_create(&options);
    for (int round = 0; round < 5; round++) {
        ck_assert_int_eq(fixture_open_job(fixture, FIXTURE_JOB), 0);
        ck_assert_uint_eq(fixture->posted_count, 15);
        ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 1), 0);
        ck_assert_uint_eq(fixture->posted_count, 14); /* one is held */
        exchange_job_close(fixture->exchange, FIXTURE_JOB);
        exchange_check(fixture->exchange);
        ck_assert_uint_le(fixture->posted_count, 15);
    }
    fixture_destroy(fixture);
}
END_TEST

/* A job of two ranks, one here and one on that node; this node owns all shards. */
static int open_pair(struct fixture *fixture, uint64_t job, uint32_t node)
{
    uint32_t rank_nodes[] = {0, node}, server = 0, weight = 1;
    struct engine_job roster = {.job = job,
                                .name = "pair",
                                .world_size = 2,
                                .rank_nodes = rank_nodes,
                                .server_count = 1,
                                .server_nodes = &server,
                                .server_weights = &weight};
    return exchange_job_open(fixture->exchange, &roster, &fixture->error);
}

/* What a closed job was promised is free for jobs with other peers, and its receives serve the
 * next with the same one. */
START_TEST(a_closed_job_promises_nothing)
{
    struct fixture_options options = four_nodes(5);
    options.shared_receives = _i == 1;
    struct fixture *fixture = fixture_create(&options);
    for (uint64_t round = 0; round < 12; round++) {
        uint32_t node = 1 + (uint32_t)round % 3;
        uint32_t posted = fixture->posted_count;
        ck_assert_int_eq(open_pair(fixture, 7 + round, node), 0);
        ck_assert_uint_eq(fixture->posted_count, round < 3 && (round == 0 || _i == 0)
                                                     ? posted + 5
                                                     : posted); /* no memory more */
        ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 5 * 320);
        fixture_expect_error(fixture, open_pair(fixture, 100, 3), ERR_MEMORY, "already promised");
        exchange_job_close(fixture->exchange, 7 + round);
        ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 0);
        exchange_check(fixture->exchange);
    }
    /* an idle receive that a late message uses up is not posted again */
    uint32_t posted = fixture->posted_count;
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 1), 0);
    ck_assert_uint_eq(fixture->posted_count, posted - 1);
    ck_assert_uint_eq(buffer_pool_used_bytes(fixture->pool), (posted - 1) * 320);
    fixture_destroy(fixture);
}
END_TEST

/* Receives are posted for who is up, and for the others once they are. */
START_TEST(receives_come_with_the_peer)
{
    struct fixture_options options = four_nodes(100);
    options.leave_down = true;
    struct fixture *fixture = fixture_create(&options);
    ck_assert_int_eq(fixture_open_job(fixture, FIXTURE_JOB), 0);
    ck_assert_uint_eq(fixture->posted_count, 0);
    exchange_peer_up(fixture->exchange, 2, fixture_receive_token(2), fixture_send_token(2));
    ck_assert_uint_eq(fixture_posted(fixture, 2), 5);
    ck_assert_uint_eq(fixture->posted_count, 5);
    fixture_peer_down(fixture, 2);
    ck_assert_uint_eq(buffer_pool_used_bytes(fixture->pool), 0);
    exchange_peer_up(fixture->exchange, 2, fixture_receive_token(2), fixture_send_token(2));
    ck_assert_uint_eq(fixture_posted(fixture, 2), 5);
    exchange_check(fixture->exchange);
    fixture_destroy(fixture);
}
END_TEST

/* A buffer that is held while its sender goes away is not posted to it again. */
START_TEST(a_held_buffer_outlives_its_sender)
{
    struct fixture *fixture = two_and_one(0);
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 1), 0);
    fixture_peer_down(fixture, 1);
    ck_assert_uint_eq(buffer_pool_used_bytes(fixture->pool), 320);
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    ck_assert_uint_eq(buffer_pool_used_bytes(fixture->pool), 0);
    ck_assert_uint_eq(fixture->posted_count, 0);
    fixture_destroy(fixture);
}
END_TEST

/* Receives that memory lacked for are made up for when a message comes. */
START_TEST(missing_receives_are_made_up_for)
{
    struct fixture_options options = four_nodes(100);
    struct fixture *fixture = fixture_create(&options);
    ck_assert_int_eq(fixture_open_job(fixture, FIXTURE_JOB), 0); /* 15 of 16 of the first slab */
    uint32_t both[] = {2, 0};
    fixture->refuse_slabs = true;
    ck_assert_int_eq(exchange_group_open(fixture->exchange, FIXTURE_JOB, 1, both, 2, NULL), 0);
    ck_assert_uint_eq(fixture_posted(fixture, 1), 6); /* of 10 */
    fixture->refuse_slabs = false;
    struct wire_header header = fixture_header(1, WIRE_RESULT, 0, 0, COUNT);
    header.job = 1; /* dropped: its buffer is free at once */
    ck_assert_int_eq(fixture_message(fixture, 1, header, NULL, 0), 0);
    ck_assert_uint_eq(fixture_posted(fixture, 1), 10);
    exchange_check(fixture->exchange);
    fixture_destroy(fixture);
}
END_TEST

/* Without anything in flight whose end would bring them on, what lacked memory is tried again with
 * time: receives, sums, and the news of a disagreement. */
START_TEST(what_lacked_memory_is_tried_again)
{
    struct fixture *fixture = two_and_one(1); /* 5 of 16 buffers are posted */
    struct buffer *taken[16];
    uint32_t count = 0;
    for (; count < 11; count++)
        taken[count] = buffer_get(fixture->pool);
    fixture->refuse_slabs = true;
    bool disagree = _i == 1;
    for (uint32_t rank = 0; rank < 2; rank++)
        fixture_submit_sum(fixture, rank, 0, COUNT + (disagree ? rank : 0));
    ck_assert_uint_eq(fixture->task_count + fixture->send_count, 0);
    exchange_tick(fixture->exchange, 1);
    fixture_run(fixture);
    ck_assert_uint_eq(fixture->task_count + fixture->send_count, 0);
    buffer_release(taken[--count]);
    fixture_run(fixture);
    ck_assert_uint_eq(fixture->task_count + fixture->send_count, 0);
    exchange_tick(fixture->exchange, 2);
    fixture_run(fixture);
    ck_assert_uint_eq(disagree ? fixture->send_count : fixture->task_count, 1);
    while (count > 0)
        buffer_release(taken[--count]);
    fixture_all_reduced(fixture);
    fixture_all_sent(fixture);
    uint32_t both[] = {2, 0};
    ck_assert_int_eq(exchange_group_open(fixture->exchange, FIXTURE_JOB, 1, both, 2, NULL), 0);
    ck_assert_uint_eq(fixture_posted(fixture, 1), 10);
    for (uint32_t n = 0; n < 6; n++)
        taken[count++] = buffer_get(fixture->pool);
    both[0] = 1;
    both[1] = 2;
    fixture->refuse_receives = true;
    ck_assert_int_eq(exchange_group_open(fixture->exchange, FIXTURE_JOB, 2, both, 2, NULL), 0);
    ck_assert_uint_eq(fixture_posted(fixture, 1), 10);
    fixture->refuse_receives = fixture->refuse_slabs = false;
    exchange_tick(fixture->exchange, 3);
    ck_assert_uint_eq(fixture_posted(fixture, 1), 15);
    while (count > 0)
        buffer_release(taken[--count]);
    fixture_destroy(fixture);
}
END_TEST

/* --- late ranks ------------------------------------------------------------------------------- */

static void expect_late(struct fixture *fixture, uint64_t sequence, uint32_t rank, uint32_t node)
{
    struct engine_event *event = fixture_event(fixture, ENGINE_LATE);
    ck_assert_uint_eq(event->job, FIXTURE_JOB);
    ck_assert_uint_eq(event->group, 0);
    ck_assert_uint_eq(event->sequence, sequence);
    ck_assert_uint_eq(event->rank_count, rank != UINT32_MAX);
    if (rank != UINT32_MAX)
        ck_assert_uint_eq(event->ranks[0], rank);
    ck_assert_uint_eq(event->node_count, node != UINT32_MAX);
    if (node != UINT32_MAX)
        ck_assert_uint_eq(event->nodes[0], node);
    engine_event_free(event);
}

START_TEST(late_ranks_and_nodes_are_reported_once)
{
    struct fixture *fixture = two_and_one(0);
    fixture->now_ns = 10000;
    exchange_tick(fixture->exchange, 10000);
    fixture_submit_sum(fixture, 0, 0, COUNT); /* rank 1 is late */
    exchange_tick(fixture->exchange, 10999);
    ck_assert_uint_eq(fixture->event_count, 0);
    exchange_tick(fixture->exchange, 11000);
    expect_late(fixture, 0, 1, UINT32_MAX);
    exchange_tick(fixture->exchange, 50000);
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture->now_ns = 60000;
    fixture_submit_sum(fixture, 1, 0, COUNT);
    fixture_all_reduced(fixture);
    exchange_tick(fixture->exchange, 60000);
    ck_assert_uint_eq(fixture->event_count, 0); /* the slot is new, and 0 was reported */
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 1), 0);
    fixture_all_reduced(fixture);
    /* the next one: the other node is late */
    for (uint32_t rank = 0; rank < 2; rank++)
        fixture_submit_sum(fixture, rank, 1, COUNT);
    fixture_all_reduced(fixture);
    exchange_tick(fixture->exchange, 61000);
    expect_late(fixture, 1, UINT32_MAX, 1);
    exchange_tick(fixture->exchange, 99000);
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_destroy(fixture);
}
END_TEST

/* An owner hears another node first: its own ranks are late. */
START_TEST(this_nodes_ranks_are_late_for_others)
{
    struct fixture *fixture = two_and_one(0);
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 1), 0);
    fixture_submit_sum(fixture, 1, 0, COUNT);
    exchange_tick(fixture->exchange, 5000);
    expect_late(fixture, 0, 0, UINT32_MAX);
    exchange_job_fail(fixture->exchange, FIXTURE_JOB);
    exchange_tick(fixture->exchange, 99000);
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_query_is_answered)
{
    struct fixture *fixture = two_and_one(1);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    exchange_late_query(fixture->exchange, FIXTURE_JOB, 0, 0);
    expect_late(fixture, 0, 1, UINT32_MAX);
    fixture_submit_sum(fixture, 1, 0, COUNT);
    exchange_late_query(fixture->exchange, FIXTURE_JOB, 0, 0);
    expect_late(fixture, 0, UINT32_MAX, UINT32_MAX);
    exchange_late_query(fixture->exchange, FIXTURE_JOB, 9, 0);
    exchange_late_query(fixture->exchange, 9, 0, 0);
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_destroy(fixture);
}
END_TEST

static TCase *ends(void)
{
    TCase *tests = tcase_create("ends");
    tcase_add_loop_test(tests, a_failed_job_moves_no_more, 0, 20);
    tcase_add_loop_test(tests, a_closed_jobs_memory_goes_when_nothing_touches_it, 0, 20);
    tcase_add_test(tests, an_idle_job_closes_at_once);
    tcase_add_test(tests, one_group_ends_and_another_goes_on);
    tcase_add_test(tests, disagreeing_nodes_are_all_told);
    tcase_add_loop_test(tests, without_memory_for_a_message_the_group_fails, 0, 2);
    tcase_add_loop_test(tests, a_peer_that_changes_its_mind_is_named, 0, 2);
    tcase_add_test(tests, a_nodes_own_disagreement_is_reported_by_the_owner);
    tcase_add_test(tests, a_rank_that_left_is_missed_by_what_it_did_not_submit);
    tcase_add_test(tests, a_rank_leaves_while_others_wait_for_it);
    tcase_add_test(tests, a_detached_worker_tells_how_far_it_got);
    return tests;
}

static TCase *beginnings(void)
{
    TCase *tests = tcase_create("beginnings");
    tcase_add_test(tests, attaching_is_checked);
    tcase_add_test(tests, rosters_are_checked);
    tcase_add_test(tests, groups_are_checked);
    tcase_add_test(tests, a_job_beyond_the_memory_is_refused_and_takes_none);
    tcase_add_test(tests, receives_of_a_closed_job_serve_the_next);
    tcase_add_loop_test(tests, a_closed_job_promises_nothing, 0, 2);
    tcase_add_test(tests, receives_come_with_the_peer);
    tcase_add_test(tests, a_held_buffer_outlives_its_sender);
    tcase_add_test(tests, missing_receives_are_made_up_for);
    tcase_add_loop_test(tests, what_lacked_memory_is_tried_again, 0, 2);
    tcase_add_test(tests, late_ranks_and_nodes_are_reported_once);
    tcase_add_test(tests, this_nodes_ranks_are_late_for_others);
    tcase_add_test(tests, a_query_is_answered);
    return tests;
}

int main(void)
{
    Suite *suite = suite_create("exchange_faults");
    suite_add_tcase(suite, ends());
    suite_add_tcase(suite, beginnings());
    return suite_main(suite);
}
