/* Results that are stored past the cache: large ones, where nobody has just read or reads next. */
#include <stdlib.h>

#include "common/memory/copy.h"
#include "tests/lib/server/exchange_fixture.h"
#include "tests/lib/server/exchange_fixture_blocks.h"
#include "tests/lib/suite.h"

#define LARGE (COPY_PAST_CACHE_BYTES / (uint32_t)sizeof(float)) /* the fewest elements */
#define CHUNK_BYTES 32768u
#define SEGMENT 1u

enum where { OUT_OF_PLACE = 0, IN_PLACE = 1, STAGED = 2, SHARED = 4 };

static struct fixture *create(uint32_t nodes, uint32_t ranks, uint32_t owner)
{
    struct fixture_options options = {.nodes = nodes,
                                      .ranks = ranks,
                                      .chunk_bytes = CHUNK_BYTES,
                                      .arena_bytes = 3ull * COPY_PAST_CACHE_BYTES};
    for (uint32_t rank = 0; rank < ranks; rank++)
        options.rank_nodes[rank] = rank % nodes;
    options.weights[owner] = 1;
    return fixture_create(&options);
}

static void submit(struct fixture *fixture, uint32_t rank, uint64_t count, unsigned where)
{
    struct arena_submission it = fixture_ask(fixture, rank, 0, count);
    if (!(where & IN_PLACE))
        it.out_offset += COPY_PAST_CACHE_BYTES;
    if (where & STAGED) {
        it.flags |= ARENA_FLAG_STAGED;
        it.in_offset = it.out_offset = 0;
    }
    if (where & SHARED) {
        it.flags |= ARENA_FLAG_SHARED;
        it.segment = SEGMENT;
        it.out_offset = 0;
    }
    EXPECT_MSG(fixture_submit(fixture, rank, &it) == 0, "%s", fixture->error.text);
    if (where & STAGED)
        EXPECT(fixture_hand_over(fixture, rank, 0, 0, fixture_offset(fixture, rank, 0)) == 0);
}

static void expect_tasks(const struct fixture *fixture, uint32_t outputs, uint32_t past_cache)
{
    ck_assert_uint_gt(fixture->task_count, 0);
    for (uint32_t i = 0; i < fixture->task_count; i++) {
        ck_assert_uint_eq(fixture->tasks[i]->reduction.outputs, outputs);
        ck_assert_uint_eq(fixture->tasks[i]->reduction.past_cache, past_cache);
    }
}

/* Both ranks of one node. */
static void expect_on_one_node(uint64_t count, enum where first, enum where second,
                               uint32_t past_cache)
{
    struct fixture *fixture = create(1, 2, 0);
    submit(fixture, 0, count, first);
    submit(fixture, 1, count, second);
    expect_tasks(fixture, 2, past_cache);
    fixture_all_reduced(fixture);
    fixture_destroy(fixture);
}

START_TEST(large_results_out_of_place)
{
    expect_on_one_node(LARGE, OUT_OF_PLACE, OUT_OF_PLACE, 2);
    expect_on_one_node(LARGE - 1, OUT_OF_PLACE, OUT_OF_PLACE, 0);
}
END_TEST

START_TEST(what_was_just_read_and_what_is_read_next)
{
    expect_on_one_node(LARGE, IN_PLACE, IN_PLACE, 0);
    expect_on_one_node(LARGE, STAGED, STAGED, 0);
    expect_on_one_node(LARGE, OUT_OF_PLACE, STAGED, 0);
    expect_on_one_node(LARGE, IN_PLACE, OUT_OF_PLACE, 0);
}
END_TEST

START_TEST(a_shared_result)
{
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t count = i / 2 ? LARGE : LARGE - 1, staged = i % 2 ? STAGED : 0;
        struct fixture *fixture = create(1, 2, 0);
        struct exchange_segment segment = {.number = SEGMENT,
                                           .bytes = COPY_PAST_CACHE_BYTES,
                                           .base = aligned_alloc(64, COPY_PAST_CACHE_BYTES)};
        uint8_t *memory = segment.base;
        ck_assert_ptr_nonnull(memory);
        ck_assert_int_eq(exchange_segment_open(fixture->exchange, FIXTURE_JOB, 0, &segment, NULL),
                         0);
        submit(fixture, 0, count, SHARED);
        submit(fixture, 1, count, SHARED | staged);
        expect_tasks(fixture, 1, count == LARGE);
        fixture_all_reduced(fixture);
        fixture_destroy(fixture);
        free(memory);
    }
}
END_TEST

/* A rank that only receives has said where, and nobody has read that memory. */
START_TEST(a_copy)
{
    struct fixture *fixture = create(1, 3, 0);
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct arena_submission it = fixture_ask(fixture, rank, 0, LARGE);
        it.kind = COLLECTIVE_BROADCAST;
        it.root = 1;
        EXPECT_MSG(fixture_submit(fixture, rank, &it) == 0, "%s", fixture->error.text);
    }
    expect_tasks(fixture, 2, 2);
    fixture_all_reduced(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* Its receiver has waited for it. */
START_TEST(a_send)
{
    struct fixture *fixture = create(1, 2, 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct arena_submission it = fixture_ask(fixture, rank, 0, LARGE);
        it.kind = COLLECTIVE_SEND;
        it.op = 0;
        it.sequence = WIRE_SEND_SEQUENCE;
        it.block = pair(0, 1);
        EXPECT_MSG(fixture_submit(fixture, rank, &it) == 0, "%s", fixture->error.text);
    }
    expect_tasks(fixture, 1, 0);
    fixture_all_reduced(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* A result that goes back over the network is read next. */
START_TEST(the_owner_sums)
{
    struct fixture *fixture = create(2, 2, 0);
    submit(fixture, 0, LARGE, OUT_OF_PLACE);
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, LARGE, 1), 0);
    expect_tasks(fixture, 2, 1);
    const struct reduction *sum = &fixture->tasks[0]->reduction;
    ck_assert_ptr_eq(sum->out[1], sum->in[1]); /* where the contribution came */
    fixture_destroy(fixture);
    fixture = create(2, 2, 0);
    submit(fixture, 0, LARGE, IN_PLACE);
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, LARGE, 1), 0);
    expect_tasks(fixture, 2, 0);
    fixture_destroy(fixture);
}
END_TEST

/* The sum of a node's ranks is sent next; what the owner answers goes where the ranks said. */
START_TEST(a_node_sums_and_delivers)
{
    struct fixture *fixture = create(2, 4, 1);
    submit(fixture, 0, LARGE, OUT_OF_PLACE);
    submit(fixture, 2, LARGE, OUT_OF_PLACE);
    expect_tasks(fixture, 1, 0);
    fixture_all_reduced(fixture);
    fixture_sent(fixture, 0);
    ck_assert_int_eq(fixture_result(fixture, 1, 0, 0, LARGE, 1), 0);
    expect_tasks(fixture, 2, 2);
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_cache");
    TCase *cases = tcase_create("cache");
    tcase_add_test(cases, large_results_out_of_place);
    tcase_add_test(cases, what_was_just_read_and_what_is_read_next);
    tcase_add_test(cases, a_shared_result);
    tcase_add_test(cases, a_copy);
    tcase_add_test(cases, a_send);
    tcase_add_test(cases, the_owner_sums);
    tcase_add_test(cases, a_node_sums_and_delivers);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
