/* Entries that workers hand over: everything in an entry is checked, and an entry that makes no
 * sense changes nothing. */
#include "server/exchange/ground/submission.h"
#include "tests/lib/server/exchange_fixture.h"
#include "tests/lib/suite.h"

/* Two ranks on one node; 3 chunks of a collective. */
static struct fixture *two_ranks(void)
{
    struct fixture_options options = {.nodes = 1, .ranks = 2, .weights = {1}};
    return fixture_create(&options);
}

#define COUNT (3 * FIXTURE_CHUNK)

/* The collective `sequence` of both ranks goes through, with the right sums. */
static void finish(struct fixture *fixture, uint64_t sequence)
{
    uint32_t place = (uint32_t)sequence;
    fixture_fill(fixture, 0, place, COUNT, 1);
    fixture_fill(fixture, 1, place, COUNT, 1000);
    for (uint32_t rank = 0; rank < 2; rank++)
        fixture_submit_sum(fixture, rank, sequence, COUNT);
    fixture_all_reduced(fixture);
    for (uint32_t rank = 0; rank < 2; rank++) {
        EXPECT(fixture_completed(fixture, rank, 100 + sequence));
        for (uint32_t i = 0; i < COUNT; i++)
            EXPECT(fixture_data(fixture, rank, place)[i] == 1001.0f + 2 * (float)i);
    }
    EXPECT(fixture->event_count == 0);
    EXPECT(exchange_idle(fixture->exchange));
}

struct wrong {
    const char *words;
    int code;
    struct arena_submission it;
    bool with[10]; /* which fields replace those of a right one, in the order below */
};

enum { TYPE, KIND, DTYPE, OP, GROUP, SEQUENCE, ITS_COUNT, IN, OUT, FLAGS };

#define ROOTED(root_) .kind = COLLECTIVE_BROADCAST, .root = (root_)
#define PROTOCOL ERR_PROTOCOL
#define INVALID ERR_INVALID

static const struct wrong wrongs[] = {
    {"type 0 does not exist", PROTOCOL, {.type = 0}, {[TYPE] = true}},
    {"type 5 does not exist", PROTOCOL, {.type = 5}, {[TYPE] = true}},
    {"collective 10 does not exist", INVALID, {.kind = 10}, {[KIND] = true}},
    {"collective 255 does", INVALID, {.kind = 255}, {[KIND] = true}},
    {"data type 12 is none of this version's", INVALID, {.dtype = 12}, {[DTYPE] = true}},
    {"operation 11 is none of this version's", INVALID, {.op = 11}, {[OP] = true}},
    {"operation band (5) is not defined for float", INVALID, {.op = REDUCE_BAND}, {[OP] = true}},
    {"root 2 in a group of 2 ranks", INVALID, {ROOTED(2)}, {[KIND] = true}},
    {"root 4294967295 in", INVALID, {ROOTED(UINT32_MAX)}, {[KIND] = true}},
    {"a barrier has 192 elements", INVALID, {.kind = COLLECTIVE_BARRIER}, {[KIND] = true}},
    {"group 1 is not one of rank 0", PROTOCOL, {.group = 1}, {[GROUP] = true}},
    {"group 4294967295 is not", PROTOCOL, {.group = UINT32_MAX}, {[GROUP] = true}},
    {"collective 1 of group 0", PROTOCOL, {.sequence = 1}, {[SEQUENCE] = true}},
    {"0 was expected", PROTOCOL, {.sequence = 9}, {[SEQUENCE] = true}},
    {"collective 18446744073709551615 of", PROTOCOL, {.sequence = UINT64_MAX}, {[SEQUENCE] = true}},
    {"18446744073709551615 elements are too", INVALID, {.count = UINT64_MAX}, {[ITS_COUNT] = true}},
    {"elements are too many", INVALID, {.count = (1ull << 59) + 1}, {[ITS_COUNT] = true}},
    {"is not inside the arena", PROTOCOL, {.count = 1ull << 59}, {[ITS_COUNT] = true}},
    {"is not inside the arena", PROTOCOL, {.count = 1 << 20}, {[ITS_COUNT] = true}},
    {"offsets 0 and", PROTOCOL, {.in_offset = 0}, {[IN] = true}},
    {"is not inside the arena", PROTOCOL, {.in_offset = 4096}, {[IN] = true}}, /* the ring */
    {"is not inside the arena", PROTOCOL, {.in_offset = (1 << 20) - 64}, {[IN] = true}},
    {"is not inside the arena", PROTOCOL, {.in_offset = UINT64_MAX - 63}, {[IN] = true}},
    {"is not inside the arena", PROTOCOL, {.in_offset = 65536 + 4}, {[IN] = true}}, /* unaligned */
    {"and 1048576 of 768 bytes", PROTOCOL, {.out_offset = 1 << 20}, {[OUT] = true}},
    {"is not inside the arena", PROTOCOL, {.out_offset = 1}, {[OUT] = true}},
    {"unknown flags 0x2", PROTOCOL, {.flags = 2}, {[FLAGS] = true}},
    {"unknown flags 0x80000001", PROTOCOL, {.flags = 0x80000001u}, {[FLAGS] = true}},
};

static struct arena_submission wrong_submission(const struct fixture *fixture,
                                                const struct wrong *wrong)
{
    struct arena_submission it = fixture_ask(fixture, 0, 0, COUNT);
    const bool *with = wrong->with;
    it.type = with[TYPE] ? wrong->it.type : it.type;
    it.kind = with[KIND] ? wrong->it.kind : it.kind;
    it.root = with[KIND] ? wrong->it.root : it.root;
    it.dtype = with[DTYPE] ? wrong->it.dtype : it.dtype;
    it.op = with[OP] ? wrong->it.op : it.op;
    it.group = with[GROUP] ? wrong->it.group : it.group;
    it.sequence = with[SEQUENCE] ? wrong->it.sequence : it.sequence;
    it.count = with[ITS_COUNT] ? wrong->it.count : it.count;
    it.in_offset = with[IN] ? wrong->it.in_offset : it.in_offset;
    it.out_offset = with[OUT] ? wrong->it.out_offset : it.out_offset;
    it.flags = with[FLAGS] ? wrong->it.flags : it.flags;
    return it;
}

START_TEST(nonsense_is_refused_with_the_reason_and_changes_nothing)
{
    const struct wrong *wrong = &wrongs[_i];
    struct fixture *fixture = two_ranks();
    struct arena_submission it = wrong_submission(fixture, wrong);
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), wrong->code, wrong->words);
    /* again when the other rank is there already */
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.slots, 0);
    ck_assert(exchange_idle(fixture->exchange));
    finish(fixture, 0);
    /* and in the midst of others */
    fixture_submit_sum(fixture, 1, 1, COUNT);
    if (wrong->it.sequence == 0) {
        it.sequence = 1;
        fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), wrong->code, wrong->words);
    }
    fixture_submit_sum(fixture, 0, 1, COUNT);
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 0, 101) && fixture_completed(fixture, 1, 101));
    fixture_destroy(fixture);
}
END_TEST

/* A rank that runs ahead of the others cannot make the daemon keep lists without end. */
START_TEST(chunks_under_way_are_bounded)
{
    struct fixture *fixture = two_ranks();
    struct arena_submission it = fixture_ask(fixture, 0, 0, (3ull << 20) * FIXTURE_CHUNK);
    it.flags = ARENA_FLAG_STAGED;
    ck_assert_int_eq(fixture_submit(fixture, 0, &it), 0);
    it = fixture_ask(fixture, 0, 1, (2ull << 20) * FIXTURE_CHUNK);
    it.flags = ARENA_FLAG_STAGED;
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_MEMORY,
                         "chunks of group 0 under way");
    it = fixture_ask(fixture, 0, 1, COUNT);
    ck_assert_int_eq(fixture_submit(fixture, 0, &it), 0);
    fixture_destroy(fixture);
}
END_TEST

/* A rank cannot make the daemon keep objects without end either: it hands over a place of the arena
 * again and again, for one collective or for several. */
START_TEST(bytes_handed_over_are_bounded_by_the_arena)
{
    struct fixture_options options = {
        .nodes = 1, .ranks = 2, .weights = {1}, .chunk_bytes = 64 * 1024};
    struct fixture *fixture = fixture_create(&options);
    uint64_t count = 40ull * 64 * 1024 / sizeof(float), last = 0;
    uint32_t places = ARENA_LEAST_BYTES / (64 * 1024);
    for (uint64_t sequence = 0; sequence < 2; sequence++) {
        struct arena_submission it = fixture_ask(fixture, 0, sequence, count);
        it.flags = ARENA_FLAG_STAGED;
        ck_assert_int_eq(fixture_submit(fixture, 0, &it), 0);
    }
    uint64_t offset = fixture_offset(fixture, 0, 0);
    for (uint32_t chunk = 0; chunk < places; chunk++)
        ck_assert_int_eq(fixture_hand_over(fixture, 0, chunk % 2, chunk / 2, offset), 0);
    struct exchange_totals totals;
    for (uint64_t sequence = 0; sequence < 2; sequence++)
        fixture_expect_error(fixture, fixture_hand_over(fixture, 0, sequence, places / 2, offset),
                             ERR_PROTOCOL, "than its arena of 1048576 bytes holds");
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_le(totals.slots, places + 2);
    /* what came back makes room: the other rank comes */
    for (uint64_t sequence = 0; sequence < 2; sequence++) {
        struct arena_submission it = fixture_ask(fixture, 1, sequence, count);
        it.flags = ARENA_FLAG_STAGED;
        ck_assert_int_eq(fixture_submit(fixture, 1, &it), 0);
    }
    for (uint32_t chunk = 0; chunk < 80; chunk++) {
        uint64_t sequence = chunk % 2;
        if (chunk >= places)
            ck_assert_int_eq(fixture_hand_over(fixture, 0, sequence, chunk / 2, offset), 0);
        ck_assert_int_eq(
            fixture_hand_over(fixture, 1, sequence, chunk / 2, fixture_offset(fixture, 1, 0)), 0);
        fixture_all_reduced(fixture);
        last = sequence;
    }
    ck_assert(fixture_completed(fixture, 0, 100) && fixture_completed(fixture, 1, 100 + last));
    ck_assert_uint_eq(fixture->workers[0].handed_bytes, 0);
    ck_assert_uint_eq(fixture->workers[0].requests, 0);
    fixture_destroy(fixture);
}
END_TEST

/* Chunks without data take no bytes, but each will want an entry of the completion ring. */
START_TEST(empty_chunks_are_bounded_too)
{
    struct fixture *fixture = two_ranks();
    uint32_t entries = fixture->workers[0].arena.completion_mask + 1;
    for (uint64_t sequence = 0; sequence <= entries; sequence++) {
        struct arena_submission it = fixture_ask(fixture, 0, sequence, 0);
        it.flags = ARENA_FLAG_STAGED;
        it.kind = sequence % 2 ? COLLECTIVE_BARRIER : COLLECTIVE_ALL_REDUCE;
        ck_assert_int_eq(fixture_submit(fixture, 0, &it), 0);
    }
    uint64_t offset = fixture_offset(fixture, 0, 0);
    for (uint64_t sequence = 0; sequence < entries; sequence++)
        ck_assert_int_eq(fixture_hand_over(fixture, 0, sequence, 0, offset), 0);
    fixture_expect_error(fixture, fixture_hand_over(fixture, 0, entries, 0, offset), ERR_PROTOCOL,
                         "than its completion ring of 128 entries holds");
    /* a group that has ended counts no more */
    exchange_group_stop(fixture->exchange, FIXTURE_JOB, 0);
    ck_assert_uint_eq(fixture->workers[0].handed_chunks, 0);
    ck_assert_uint_eq(fixture->workers[0].requests, 0);
    fixture_destroy(fixture);
}
END_TEST

/* Requests of a rank are bounded in all its groups together. */
START_TEST(requests_under_way_are_bounded)
{
    struct fixture *fixture = two_ranks();
    uint32_t both[] = {0, 1};
    ck_assert_int_eq(exchange_group_open(fixture->exchange, FIXTURE_JOB, 1, both, 2, NULL), 0);
    const uint32_t before = SUBMISSION_REQUESTS_MAX - 2048; /* as if in other groups */
    fixture->workers[0].requests += before;
    for (uint64_t i = 0; i < 2048; i++) {
        struct arena_submission it = fixture_ask(fixture, 0, i / 2, 0);
        it.group = i % 2;
        it.kind = COLLECTIVE_BARRIER;
        EXPECT(exchange_submit(fixture->exchange, &fixture->workers[0], &it, 1, NULL) == 0);
    }
    struct arena_submission it = fixture_ask(fixture, 0, 1024, 0);
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL,
                         "more than 32768 requests under way");
    fixture->workers[0].requests -= before;
    /* the other rank is not touched by that */
    it = fixture_ask(fixture, 1, 0, 0);
    it.kind = COLLECTIVE_BARRIER;
    ck_assert_int_eq(fixture_submit(fixture, 1, &it), 0);
    ck_assert(fixture_completed(fixture, 1, 100));
    fixture_destroy(fixture);
}
END_TEST

START_TEST(sequences_are_counted_for_each_rank)
{
    struct fixture *fixture = two_ranks();
    for (uint64_t sequence = 0; sequence < 3; sequence++)
        fixture_submit_sum(fixture, 0, sequence, COUNT);
    struct arena_submission again = fixture_ask(fixture, 0, 2, COUNT);
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &again), ERR_PROTOCOL,
                         "collective 2 of group 0, where 3 was expected");
    struct arena_submission ahead = fixture_ask(fixture, 1, 1, COUNT);
    fixture_expect_error(fixture, fixture_submit(fixture, 1, &ahead), ERR_PROTOCOL,
                         "collective 1 of group 0, where 0 was expected");
    for (uint64_t sequence = 0; sequence < 3; sequence++)
        fixture_submit_sum(fixture, 1, sequence, COUNT);
    fixture_all_reduced(fixture);
    for (uint64_t sequence = 0; sequence < 3; sequence++)
        ck_assert(fixture_completed(fixture, 1, 100 + sequence));
    fixture_destroy(fixture);
}
END_TEST

/* --- staged chunks ---------------------------------------------------------------------------- */

static void submit_staged(struct fixture *fixture, uint32_t rank, uint64_t sequence)
{
    struct arena_submission it = fixture_ask(fixture, rank, sequence, COUNT);
    it.flags = ARENA_FLAG_STAGED;
    it.in_offset = it.out_offset = UINT64_MAX; /* not looked at */
    ck_assert_int_eq(fixture_submit(fixture, rank, &it), 0);
}

START_TEST(staged_chunks_are_summed_and_reported_one_by_one)
{
    struct fixture *fixture = two_ranks();
    submit_staged(fixture, 0, 0);
    submit_staged(fixture, 1, 0);
    /* anywhere in the arena, each rank elsewhere */
    static const uint32_t places[2][3] = {{5, 2, 7}, {1, 0, 3}};
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (uint32_t chunk = 0; chunk < 3; chunk++)
            fixture_fill(fixture, rank, places[rank][chunk], FIXTURE_CHUNK,
                         (float)(100 * chunk + rank));
    }
    for (uint32_t chunk = 0; chunk < 3; chunk++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            ck_assert_uint_eq(fixture->task_count, 0);
            ck_assert_int_eq(fixture_hand_over(fixture, rank, 0, chunk,
                                               fixture_offset(fixture, rank, places[rank][chunk])),
                             0);
        }
        ck_assert_uint_eq(fixture->task_count, 1);
        fixture_all_reduced(fixture);
        ck_assert_uint_eq(fixture->completion_count, chunk == 2 ? 4 : 2);
        for (uint32_t rank = 0; rank < 2; rank++) {
            const struct fixture_completion *it = &fixture->completions[rank];
            ck_assert_uint_eq(it->rank, rank);
            ck_assert_uint_eq(it->it.type, ARENA_CHUNK_DONE);
            ck_assert_uint_eq(it->it.chunk, chunk);
            ck_assert_uint_eq(it->it.request, 100);
            ck_assert_uint_eq(it->it.offset, fixture_offset(fixture, rank, places[rank][chunk]));
            const float *data = fixture_data(fixture, rank, places[rank][chunk]);
            for (uint32_t i = 0; i < FIXTURE_CHUNK; i++)
                EXPECT(data[i] == (float)(200 * chunk + 1 + 2 * i));
        }
        if (chunk < 2)
            fixture->completion_count = 0;
    }
    /* the requests' ends come after their last chunks */
    ck_assert_uint_eq(fixture->completions[2].it.type, ARENA_REQUEST_DONE);
    ck_assert_uint_eq(fixture->completions[3].it.type, ARENA_REQUEST_DONE);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(one_rank_staged_the_other_not)
{
    struct fixture *fixture = two_ranks();
    fixture_fill(fixture, 1, 0, COUNT, 0);
    fixture_submit_sum(fixture, 1, 0, COUNT);
    submit_staged(fixture, 0, 0);
    ck_assert_uint_eq(fixture->task_count, 0);
    for (uint32_t chunk = 0; chunk < 3; chunk++) {
        fixture_fill(fixture, 0, 4 + chunk, FIXTURE_CHUNK, 7);
        ck_assert_int_eq(
            fixture_hand_over(fixture, 0, 0, chunk, fixture_offset(fixture, 0, 4 + chunk)), 0);
    }
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 0, 100) && fixture_completed(fixture, 1, 100));
    ck_assert_uint_eq(fixture->completion_count, 3); /* rank 0's chunks; rank 1 has none */
    for (uint32_t i = 0; i < COUNT; i++) {
        float expected = (float)i + 7 + (float)(i % FIXTURE_CHUNK);
        EXPECT(fixture_data(fixture, 1, 0)[i] == expected);
        EXPECT(fixture_data(fixture, 0, 4 + i / FIXTURE_CHUNK)[i % FIXTURE_CHUNK] == expected);
    }
    fixture_destroy(fixture);
}
END_TEST

static void expect_bad_chunk(struct fixture *fixture, uint64_t sequence, uint32_t chunk,
                             uint64_t offset, const char *words)
{
    fixture_expect_error(fixture, fixture_hand_over(fixture, 0, sequence, chunk, offset),
                         ERR_PROTOCOL, words);
}

START_TEST(chunks_that_make_no_sense_change_nothing)
{
    struct fixture *fixture = two_ranks();
    uint64_t good = fixture_offset(fixture, 0, 3);
    expect_bad_chunk(fixture, 0, 0, good, "a chunk of collective 0 of group 0, which was not");
    fixture_submit_sum(fixture, 1, 0, COUNT);
    expect_bad_chunk(fixture, 0, 0, good, "was not submitted as staged"); /* by another rank only */
    submit_staged(fixture, 0, 0);
    expect_bad_chunk(fixture, 0, 1, good, "chunk 1 of collective 0, 0 of 3 expected");
    expect_bad_chunk(fixture, 0, UINT32_MAX, good, "chunk 4294967295");
    expect_bad_chunk(fixture, 7, 0, good, "collective 7");
    expect_bad_chunk(fixture, 0, 0, 0, "a chunk at offset 0 of 256 bytes");
    expect_bad_chunk(fixture, 0, 0, (1 << 20) - 192, "is not inside the arena");
    expect_bad_chunk(fixture, 0, 0, UINT64_MAX - 63, "is not inside the arena");
    expect_bad_chunk(fixture, 0, 0, good + 8, "is not inside the arena");
    struct arena_submission other = {
        .type = ARENA_CHUNK, .request = 99, .sequence = 0, .chunk = 0, .in_offset = good};
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &other), ERR_PROTOCOL,
                         "was not submitted as staged");
    for (uint32_t chunk = 0; chunk < 3; chunk++)
        ck_assert_int_eq(fixture_hand_over(fixture, 0, 0, chunk, good + (uint64_t)chunk * 256), 0);
    expect_bad_chunk(fixture, 0, 2, good, "chunk 2 of collective 0, 3 of 3 expected");
    expect_bad_chunk(fixture, 0, 3, good, "chunk 3 of collective 0, 3 of 3 expected");
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 0, 100) && fixture_completed(fixture, 1, 100));
    expect_bad_chunk(fixture, 0, 0, good, "which was not submitted"); /* it is over */
    fixture_destroy(fixture);
}
END_TEST

START_TEST(an_unstaged_request_takes_no_chunks)
{
    struct fixture *fixture = two_ranks();
    fixture_submit_sum(fixture, 0, 0, COUNT);
    expect_bad_chunk(fixture, 0, 0, fixture_offset(fixture, 0, 0), "was not submitted as staged");
    fixture_submit_sum(fixture, 1, 0, COUNT);
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 0, 100));
    fixture_destroy(fixture);
}
END_TEST

/* --- what is allowed -------------------------------------------------------------------------- */

START_TEST(nothing_to_reduce_needs_no_arena)
{
    struct fixture *fixture = two_ranks();
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct arena_submission it = fixture_ask(fixture, rank, 0, 0);
        it.in_offset = it.out_offset = UINT64_MAX;
        ck_assert_int_eq(fixture_submit(fixture, rank, &it), 0);
    }
    ck_assert_uint_eq(fixture->task_count, 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct arena_submission it = fixture_ask(fixture, rank, 1, 0);
        it.kind = COLLECTIVE_BARRIER;
        it.dtype = it.op = 200;
        it.root = 77;
        it.in_offset = it.out_offset = 1;
        ck_assert_int_eq(fixture_submit(fixture, rank, &it), 0);
        ck_assert_uint_eq(fixture->completion_count, rank == 0 ? 2 : 4);
    }
    ck_assert(fixture_completed(fixture, 0, 100) && fixture_completed(fixture, 1, 101));
    fixture_destroy(fixture);
}
END_TEST

START_TEST(the_last_byte_of_the_arena_may_be_used)
{
    struct fixture *fixture = two_ranks();
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct arena_submission it = fixture_ask(fixture, rank, 0, COUNT);
        it.in_offset = it.out_offset = ARENA_LEAST_BYTES - COUNT * sizeof(float);
        ck_assert_int_eq(fixture_submit(fixture, rank, &it), 0);
    }
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 0, 100));
    fixture_destroy(fixture);
}
END_TEST

START_TEST(results_go_where_they_are_wanted)
{
    struct fixture *fixture = two_ranks();
    for (uint32_t rank = 0; rank < 2; rank++) {
        fixture_fill(fixture, rank, 0, COUNT, (float)rank);
        fixture_fill(fixture, rank, 5, COUNT, -5);
        struct arena_submission it = fixture_ask(fixture, rank, 0, COUNT);
        it.kind = COLLECTIVE_REDUCE;
        it.root = 1;
        it.out_offset = fixture_offset(fixture, rank, 5);
        ck_assert_int_eq(fixture_submit(fixture, rank, &it), 0);
    }
    fixture_all_reduced(fixture);
    for (uint32_t i = 0; i < COUNT; i++) {
        EXPECT(fixture_data(fixture, 0, 0)[i] == (float)i);
        EXPECT(fixture_data(fixture, 0, 5)[i] == -5.0f + (float)i); /* not the root */
        EXPECT(fixture_data(fixture, 1, 5)[i] == 1.0f + 2 * (float)i);
    }
    fixture_destroy(fixture);
}
END_TEST

/* Ranks that disagree are told so by name; what comes afterwards is ignored. */
START_TEST(ranks_of_one_node_that_disagree)
{
    struct fixture *fixture = two_ranks();
    fixture_submit_sum(fixture, 0, 0, COUNT);
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_submit_sum(fixture, 1, 0, COUNT + 1);
    fixture_expect_failure(fixture, ERR_MISMATCH,
                           "collective 0 of group 0 differs between ranks: rank 0 asked for "
                           "all_reduce sum float count 192; rank 1 asked for all_reduce sum float "
                           "count 193");
    struct arena_submission nonsense = {.type = 99, .group = 0};
    ck_assert_int_eq(fixture_submit(fixture, 0, &nonsense), 0);
    ck_assert_uint_eq(fixture->task_count, 0);
    ck_assert_uint_eq(fixture->completion_count, 0);
    ck_assert(exchange_idle(fixture->exchange));
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_submission");
    TCase *tests = tcase_create("exchange_submission");
    tcase_add_loop_test(tests, nonsense_is_refused_with_the_reason_and_changes_nothing, 0,
                        sizeof(wrongs) / sizeof(wrongs[0]));
    tcase_add_test(tests, chunks_under_way_are_bounded);
    tcase_add_test(tests, bytes_handed_over_are_bounded_by_the_arena);
    tcase_add_test(tests, empty_chunks_are_bounded_too);
    tcase_add_test(tests, requests_under_way_are_bounded);
    tcase_add_test(tests, sequences_are_counted_for_each_rank);
    tcase_add_test(tests, staged_chunks_are_summed_and_reported_one_by_one);
    tcase_add_test(tests, one_rank_staged_the_other_not);
    tcase_add_test(tests, chunks_that_make_no_sense_change_nothing);
    tcase_add_test(tests, an_unstaged_request_takes_no_chunks);
    tcase_add_test(tests, nothing_to_reduce_needs_no_arena);
    tcase_add_test(tests, the_last_byte_of_the_arena_may_be_used);
    tcase_add_test(tests, results_go_where_they_are_wanted);
    tcase_add_test(tests, ranks_of_one_node_that_disagree);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
