/* Failing, closing and leaving with things under way; late ranks. */
#include "server/exchange/model/model.h"
#include "tests/lib/server/exchange_fixture.h"
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
    struct engine_job_status job;
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

/* How often the rank was told that the chunk at this offset is done. */
static uint32_t given_back(const struct fixture *fixture, uint32_t rank, uint64_t offset)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < fixture->completion_count; i++) {
        const struct fixture_completion *it = &fixture->completions[i];
        ck_assert_int_eq(it->it.type, ARENA_CHUNK_DONE); /* no request of it is done */
        count += it->rank == rank && it->it.offset == offset;
    }
    return count;
}

/* Places in arenas come back when their group fails, those that are being read or written when that
 * is over, and those that were on their way as they come. */
START_TEST(places_of_a_failed_group_come_back)
{
    uint32_t server = (uint32_t)_i % 2;
    struct fixture *fixture = two_and_one(server);
    /* chunk 0 is being summed, 1 contributed (here or there), 2 given by both and beyond the
     * window, 3 by one */
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct arena_submission it = fixture_ask(fixture, rank, 0, 8 * COUNT);
        it.flags = ARENA_FLAG_STAGED;
        ck_assert_int_eq(fixture_submit(fixture, rank, &it), 0);
        for (uint32_t chunk = 0; chunk < 6 + rank; chunk++)
            ck_assert_int_eq(
                fixture_hand_over(fixture, rank, 0, chunk, fixture_offset(fixture, rank, chunk)),
                0);
    }
    ck_assert_uint_eq(fixture->task_count, 4);
    fixture_reduce(fixture, 1); /* the sum of chunk 1 */
    fixture_reduce(fixture, 1); /* and 2 */
    if (server == 0)            /* chunk 1 is being summed by the owner */
        ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 1, 8 * COUNT, 1), 0);
    ck_assert_uint_eq(fixture->task_count, server == 0 ? 3 : 2);
    ck_assert_uint_eq(fixture->completion_count, 0);
    bool stop = _i / 2;
    if (stop) {
        exchange_group_stop(fixture->exchange, FIXTURE_JOB, 0);
    } else {
        exchange_rank_left(fixture->exchange, FIXTURE_JOB, 0, 2, 0);
        fixture_run(fixture);
        fixture_expect_failure(fixture, ERR_LOST, "rank 2 has left");
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (uint32_t chunk = 0; chunk < 6 + rank; chunk++) {
            /* 0 and 3 are being summed here, 1 at the owner; sums on their way are in buffers */
            bool touched = chunk == 0 || chunk == 3 || (chunk == 1 && server == 0);
            ck_assert_uint_eq(given_back(fixture, rank, fixture_offset(fixture, rank, chunk)),
                              !touched);
        }
    }
    /* one that was on its way */
    ck_assert_int_eq(fixture_hand_over(fixture, 0, 0, 6, fixture_offset(fixture, 0, 7)), 0);
    ck_assert_uint_eq(given_back(fixture, 0, fixture_offset(fixture, 0, 7)), 1);
    give_back(fixture, (unsigned)_i, true);
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (uint32_t chunk = 0; chunk < 6 + rank; chunk++)
            ck_assert_uint_eq(given_back(fixture, rank, fixture_offset(fixture, rank, chunk)), 1);
        ck_assert_uint_eq(fixture->workers[rank].handed_chunks, 0);
    }
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.slots, 0);
    fixture_destroy(fixture);
}
END_TEST

/* Ranks of one node that disagree: the chunks of whoever came second fit no cut. */
START_TEST(places_come_back_while_a_group_is_about_to_fail)
{
    struct fixture_options options = {
        .nodes = 2, .ranks = 4, .rank_nodes = {0, 0, 0, 1}, .weights = {1}};
    struct fixture *fixture = fixture_create(&options);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct arena_submission it = fixture_ask(fixture, rank, 0, (2 - rank) * COUNT);
        it.flags = ARENA_FLAG_STAGED;
        ck_assert_int_eq(fixture_submit(fixture, rank, &it), 0);
        ck_assert_int_eq(fixture_hand_over(fixture, rank, 0, 0, fixture_offset(fixture, rank, 0)),
                         0);
    }
    ck_assert_uint_eq(given_back(fixture, 1, fixture_offset(fixture, 1, 0)), 1);
    ck_assert_uint_eq(given_back(fixture, 0, fixture_offset(fixture, 0, 0)), 0);
    exchange_group_stop(fixture->exchange, FIXTURE_JOB, 0);
    ck_assert_uint_eq(given_back(fixture, 0, fixture_offset(fixture, 0, 0)), 1);
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
    ck_assert_ptr_eq(fixture->tasks[0]->reduction.in[0], fixture_data(fixture, 1, 0));
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
    static const char text[] = "collective 0 of group 0 differs between ranks: ranks 0, 1 asked "
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
                           odd == 1 ? "node b differs from node a in chunk 1; collective 0 of "
                                      "group 0 differs between ranks: ranks 0, 2 asked for "
                                      "all_reduce sum float count 128; rank 1 asked for"
                                    : "node c differs from node a in chunk 1; collective 0 of");
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
    wire_encode_rank_ask(payload + WIRE_RANK_ASK_BYTES, 2, &second);
    wire_encode_rank_ask(payload + 2 * WIRE_RANK_ASK_BYTES, 3, &second); /* no such rank */
    wire_encode_rank_ask(payload + 3 * WIRE_RANK_ASK_BYTES, 0, &second);
    payload[3 * WIRE_RANK_ASK_BYTES + 7] = 1; /* a codec, where none is */
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

/* A rank that leaves with chunks still to be handed over has not taken part in that collective: the
 * others must not wait for them. */
START_TEST(chunks_not_handed_over_count_as_left_out)
{
    struct fixture *fixture = two_and_one(0);
    for (uint64_t sequence = 0; sequence < 3; sequence++) {
        struct arena_submission it = fixture_ask(fixture, 0, sequence, COUNT);
        it.flags = ARENA_FLAG_STAGED;
        ck_assert_int_eq(fixture_submit(fixture, 0, &it), 0);
    }
    ck_assert_int_eq(fixture_hand_over(fixture, 0, 0, 0, fixture_offset(fixture, 0, 0)), 0);
    ck_assert_int_eq(fixture_hand_over(fixture, 0, 2, 0, fixture_offset(fixture, 0, 1)), 0);
    exchange_detach(fixture->exchange, &fixture->workers[0]);
    struct engine_event *event = fixture_event(fixture, ENGINE_WORKER_DETACHED);
    ck_assert_uint_eq(event->position_count, 1);
    ck_assert_uint_eq(event->positions[0].sequences, 1);
    engine_event_free(event);
    exchange_rank_left(fixture->exchange, FIXTURE_JOB, 0, 0, 1);
    fixture_run(fixture);
    fixture_expect_failure(fixture, ERR_LOST, "rank 0 has left job 'train' after 1 collectives");
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
    tcase_add_loop_test(tests, places_of_a_failed_group_come_back, 0, 4);
    tcase_add_test(tests, places_come_back_while_a_group_is_about_to_fail);
    tcase_add_test(tests, one_group_ends_and_another_goes_on);
    tcase_add_test(tests, disagreeing_nodes_are_all_told);
    tcase_add_loop_test(tests, without_memory_for_a_message_the_group_fails, 0, 2);
    tcase_add_loop_test(tests, a_peer_that_changes_its_mind_is_named, 0, 2);
    tcase_add_test(tests, a_nodes_own_disagreement_is_reported_by_the_owner);
    tcase_add_test(tests, a_rank_that_left_is_missed_by_what_it_did_not_submit);
    tcase_add_test(tests, a_rank_leaves_while_others_wait_for_it);
    tcase_add_test(tests, a_detached_worker_tells_how_far_it_got);
    tcase_add_test(tests, chunks_not_handed_over_count_as_left_out);
    return tests;
}

static TCase *beginnings(void)
{
    TCase *tests = tcase_create("beginnings");
    tcase_add_test(tests, attaching_is_checked);
    tcase_add_test(tests, rosters_are_checked);
    tcase_add_test(tests, groups_are_checked);
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
