/* Receives from any rank: what they cost others, in time and memory. */
#include <stdio.h>

#include "server/exchange/node/any_receive.h"
#include "tests/lib/server/exchange_fixture.h"
#include "tests/lib/suite.h"

#define RANKS 16u
#define OTHER_JOB 12ull
#define OTHER 15u /* the rank of another user */

static uint64_t number(uint32_t tag, uint32_t counter)
{
    return WIRE_SEND_SEQUENCE | (uint64_t)tag << WIRE_SEND_TAG_SHIFT | counter;
}

static uint32_t pair(uint32_t size, uint32_t from, uint32_t to)
{
    return 1 + from * size + to;
}

/* The rank has got `next` from each of the others. */
static int submit_any(struct fixture *fixture, uint32_t rank, uint32_t size, uint32_t tag,
                      uint32_t next)
{
    uint64_t offset = fixture_offset(fixture, rank, 7);
    uint32_t *numbers = (uint32_t *)(void *)(fixture->workers[rank].arena.base + offset);
    for (uint32_t i = 0; i < size; i++)
        numbers[i] = next;
    struct arena_submission it = {.type = ARENA_SUBMIT,
                                  .kind = COLLECTIVE_SEND,
                                  .request = 5,
                                  .sequence = number(tag, 0),
                                  .in_offset = offset,
                                  .flags = ARENA_FLAG_ANY};
    return exchange_submit(fixture->exchange, &fixture->workers[rank], &it, 1, &fixture->error);
}

static int submit_send(struct fixture *fixture, uint32_t size, uint32_t from, uint32_t to,
                       uint64_t sequence)
{
    struct arena_submission it = fixture_ask(fixture, from, 0, 0);
    it.kind = COLLECTIVE_SEND;
    it.op = 0;
    it.request = 777;
    it.block = pair(size, from, to);
    it.sequence = sequence;
    return exchange_submit(fixture->exchange, &fixture->workers[from], &it, 1, &fixture->error);
}

/* Return how many bytes the requests of the first job take. */
static uint64_t kept_bytes(struct fixture *fixture)
{
    struct engine_job_status jobs[2];
    ck_assert_uint_ge(exchange_job_totals(fixture->exchange, jobs, 2), 1);
    return jobs[0].kept_bytes;
}

/* Create a job of 16 ranks, of which `here` are on this node, 0, and the others on node 1. */
static struct fixture *some_here(uint32_t here, uint64_t kept)
{
    struct fixture_options options = {
        .nodes = 2, .ranks = RANKS, .weights = {1, 1}, .user = 1000, .kept_bytes = kept};
    for (uint32_t rank = here; rank < RANKS; rank++)
        options.rank_nodes[rank] = 1;
    return fixture_create(&options);
}

static int probe(struct fixture *fixture, uint32_t from, uint32_t to, uint64_t sequence,
                 uint32_t position, uint64_t version)
{
    struct wire_header header = fixture_header(1, WIRE_PROBE, sequence, position, 0);
    header.ask = (struct wire_ask){
        .kind = COLLECTIVE_SEND, .block = pair(RANKS, from, to), .count = version};
    return fixture_message(fixture, 1, header, NULL, 0);
}

/* --- turns ------------------------------------------------------------------------------------ */

/* One user's receive has many sends to look through that do not serve it. */
START_TEST(a_receive_asks_in_turns)
{
    enum { SENDS = 100, MEMBERS = OTHER };
    uint32_t other = OTHER;
    struct fixture_options options = {
        .nodes = 1, .ranks = RANKS, .weights = {1}, .leave_closed = true, .user = 1000};
    struct fixture *fixture = fixture_create(&options);
    ck_assert_int_eq(fixture_open_job(fixture, FIXTURE_JOB), 0);
    for (uint32_t i = 0; i < MEMBERS; i++)
        ck_assert_int_eq(fixture_attach(fixture, FIXTURE_JOB, i), 0);
    fixture->options.user = 1001;
    ck_assert_int_eq(fixture_open_job(fixture, OTHER_JOB), 0);
    ck_assert_int_eq(fixture_attach(fixture, OTHER_JOB, OTHER), 0);
    ck_assert_int_eq(exchange_group_open(fixture->exchange, OTHER_JOB, 1, &other, 1, NULL), 0);
    for (uint32_t from = 1; from < MEMBERS; from++) {
        for (uint32_t i = 0; i < SENDS; i++)
            ck_assert_int_eq(submit_send(fixture, RANKS, from, 0, number(1, i)), 0);
    }
    ck_assert_int_eq(submit_send(fixture, RANKS, MEMBERS - 1, 0, number(1, 5000)), 0);
    exchange_run(fixture->exchange);
    ck_assert_uint_eq(fixture->completion_count, 0);
    ck_assert_int_eq(submit_any(fixture, 0, RANKS, 1, 5000), 0);
    struct arena_submission it = fixture_ask(fixture, OTHER, 0, 0);
    it.kind = COLLECTIVE_BARRIER;
    it.group = 1;
    ck_assert_int_eq(exchange_submit(fixture->exchange, &fixture->workers[OTHER], &it, 1, NULL), 0);
    ck_assert(exchange_run_some(fixture->exchange, 2)); /* a turn each */
    ck_assert_uint_eq(fixture->completion_count, 1);
    ck_assert_uint_eq(fixture->completions[0].rank, OTHER);
    exchange_run(fixture->exchange);
    exchange_check(fixture->exchange);
    ck_assert_uint_eq(fixture->completion_count, 2);
    ck_assert_uint_eq(fixture->completions[1].rank, 0);
    ck_assert_uint_eq(fixture->completions[1].it.chunk, MEMBERS - 1);
    fixture_destroy(fixture);
}
END_TEST

/* While it asks, a send comes of a rank that it has looked through, or not yet; or such a rank
 * departs, with what it has sent. */
START_TEST(what_happens_between_two_turns_counts)
{
    enum { SENDS = 300 };
    struct fixture *fixture = some_here(4, 0);
    for (uint32_t i = 0; i < SENDS; i++) {
        ck_assert_int_eq(submit_send(fixture, RANKS, 1, 0, number(1, i)), 0);
        ck_assert_int_eq(submit_send(fixture, RANKS, 2, 0, number(1, i)), 0);
    }
    if (_i >= 2)
        ck_assert_int_eq(submit_send(fixture, RANKS, 3, 0, number(1, 5000)), 0);
    exchange_run(fixture->exchange);
    ck_assert_int_eq(submit_any(fixture, 0, RANKS, 1, 5000), 0);
    ck_assert(exchange_run_some(fixture->exchange, 1));
    ck_assert_uint_eq(fixture->completion_count, 0);
    uint32_t from = _i == 0 ? 1 : 3;
    if (_i < 2)
        ck_assert_int_eq(submit_send(fixture, RANKS, from, 0, number(1, 5000)), 0);
    if (_i == 2)
        exchange_rank_left(fixture->exchange, FIXTURE_JOB, 0, 3, 0);
    exchange_run(fixture->exchange);
    exchange_check(fixture->exchange);
    ck_assert_uint_eq(fixture->completion_count, 1);
    ck_assert_uint_eq(fixture->completions[0].it.chunk, from);
    ck_assert_uint_eq(fixture->send_count, 0); /* nobody elsewhere is asked any more */
    fixture_destroy(fixture);
}
END_TEST

/* A receive asks every rank elsewhere, but no more at once than a link takes easily. */
START_TEST(only_so_many_probes_are_on_their_way)
{
    enum { RECEIVES = 20, ALL = RECEIVES * (RANKS - 1) };
    struct fixture *fixture = some_here(1, 0);
    for (uint32_t i = 0; i < RECEIVES; i++)
        ck_assert_int_eq(submit_any(fixture, 0, RANKS, i, 0), 0);
    exchange_run(fixture->exchange);
    ck_assert_uint_lt(fixture->send_count, ALL);
    uint32_t seen[RECEIVES] = {0}, count = 0;
    for (; fixture->send_count > 0; count++) {
        struct wire_header header = fixture_sending(fixture, 0);
        ck_assert_int_eq(header.type, WIRE_PROBE);
        uint32_t tag = (uint32_t)(header.sequence >> WIRE_SEND_TAG_SHIFT) & WIRE_SEND_TAG_MAX;
        ck_assert_uint_eq(header.ask.block, pair(RANKS, 1 + seen[tag]++, 0));
        fixture_sent(fixture, 0);
        exchange_run(fixture->exchange);
    }
    ck_assert_uint_eq(count, ALL);
    fixture_destroy(fixture);
}
END_TEST

/* --- memory ----------------------------------------------------------------------------------- */

START_TEST(they_count_as_memory)
{
    struct fixture *fixture = some_here(RANKS, 2000);
    int result = 0;
    uint32_t count = 0;
    for (; result == 0 && count < ANY_POSITIONS; count++)
        result = submit_any(fixture, 0, RANKS, count, 0);
    fixture_expect_error(fixture, result, ERR_MEMORY,
                         "the requests of user 1000 on node a take more than 2000 bytes");
    ck_assert_uint_gt(count, 4);
    ck_assert_uint_gt(kept_bytes(fixture), 1000);
    exchange_job_fail(fixture->exchange, FIXTURE_JOB);
    exchange_run(fixture->exchange);
    ck_assert_uint_eq(kept_bytes(fixture), 0);
    fixture_destroy(fixture);
}
END_TEST

/* The memory of a receive that has found a sender comes back, before its answers from elsewhere
 * do. */
START_TEST(a_receive_that_is_over_takes_nothing)
{
    struct fixture *fixture = some_here(2, 0);
    ck_assert_int_eq(submit_send(fixture, RANKS, 1, 0, number(1, 0)), 0);
    exchange_run(fixture->exchange);
    uint64_t before = kept_bytes(fixture);
    ck_assert_int_eq(submit_any(fixture, 0, RANKS, 1, 0), 0);
    ck_assert_uint_gt(kept_bytes(fixture), before);
    exchange_run(fixture->exchange);
    ck_assert_uint_eq(fixture->completion_count, 1);
    ck_assert_uint_eq(kept_bytes(fixture), before);
    fixture_destroy(fixture);
}
END_TEST

/* The job whose receives ask so much fails; the connection to its node stays. */
START_TEST(probes_count_as_memory)
{
    struct fixture *fixture = some_here(2, 10000);
    uint32_t count = 0;
    for (; count < ANY_POSITIONS * 28 && fixture->event_count == 0; count++)
        ck_assert_int_eq(
            probe(fixture, count % 2, 2 + count / 2 % 14, number(1, 0), count / 28, 1 + count), 0);
    ck_assert_uint_gt(count, 50);
    fixture_expect_failure(fixture, ERR_MEMORY,
                           "the requests of user 1000 on node a take more than 10000 bytes");
    fixture_run(fixture);
    ck_assert_uint_eq(kept_bytes(fixture), 0);
    fixture_destroy(fixture);
}
END_TEST

/* A probe takes no memory when it is answered, replaced, or of a rank that has departed. */
START_TEST(a_probe_that_does_not_wait_takes_nothing)
{
    struct fixture *fixture = some_here(2, 0);
    for (uint32_t position = 0; position < 2; position++)
        ck_assert_int_eq(probe(fixture, 0, 2, number(1, 0), position, 1 + position), 0);
    uint64_t two = kept_bytes(fixture);
    ck_assert_uint_gt(two, 0);
    for (uint32_t version = 10; version < 20; version++)
        ck_assert_int_eq(probe(fixture, 0, 2, number(1, version), 0, version), 0);
    ck_assert_uint_eq(kept_bytes(fixture), two);
    if (_i == 0) {
        ck_assert_int_eq(submit_send(fixture, RANKS, 0, 2, number(1, 0)), 0); /* of the second */
        ck_assert_int_eq(submit_send(fixture, RANKS, 0, 2, number(1, 19)), 0);
        ck_assert_uint_eq(fixture->send_count, 2);
        fixture_all_sent(fixture);
        exchange_run(fixture->exchange);
        uint64_t sends = kept_bytes(fixture);
        ck_assert_int_eq(submit_send(fixture, RANKS, 0, 3, number(1, 0)), 0);
        ck_assert_int_eq(submit_send(fixture, RANKS, 0, 3, number(1, 1)), 0);
        exchange_run(fixture->exchange);
        ck_assert_uint_eq(kept_bytes(fixture), 2 * sends); /* no more than those without probes */
    } else {
        exchange_rank_left(fixture->exchange, FIXTURE_JOB, 0, _i == 1 ? 0 : 2, 0);
        ck_assert_uint_eq(fixture->send_count, _i == 1 ? 2 : 0);
        fixture_all_sent(fixture);
        ck_assert_uint_eq(kept_bytes(fixture), 0);
    }
    exchange_check(fixture->exchange);
    fixture_destroy(fixture);
}
END_TEST

/* A failed group forgets its probes in turns, as it does its collectives. */
START_TEST(a_failed_group_forgets_in_turns)
{
    enum { PROBES = 14 * (int)ANY_POSITIONS };
    struct fixture *fixture = some_here(2, 0);
    for (uint32_t i = 0; i < PROBES; i++)
        ck_assert_int_eq(probe(fixture, 0, 2 + i % 14, number(1, 0), i / 14, 1 + i), 0);
    uint64_t before = kept_bytes(fixture);
    exchange_job_fail(fixture->exchange, FIXTURE_JOB);
    ck_assert_uint_gt(kept_bytes(fixture), 0);
    ck_assert_uint_lt(kept_bytes(fixture), before);
    exchange_run(fixture->exchange);
    ck_assert_uint_eq(kept_bytes(fixture), 0);
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_any_receive");
    TCase *turns = tcase_create("turns");
    tcase_add_test(turns, a_receive_asks_in_turns);
    tcase_add_loop_test(turns, what_happens_between_two_turns_counts, 0, 4);
    tcase_add_test(turns, only_so_many_probes_are_on_their_way);
    suite_add_tcase(suite, turns);
    TCase *memory = tcase_create("memory");
    tcase_add_test(memory, they_count_as_memory);
    tcase_add_test(memory, a_receive_that_is_over_takes_nothing);
    tcase_add_test(memory, probes_count_as_memory);
    tcase_add_loop_test(memory, a_probe_that_does_not_wait_takes_nothing, 0, 3);
    tcase_add_test(memory, a_failed_group_forgets_in_turns);
    suite_add_tcase(suite, memory);
    return suite_main(suite);
}
