/* Two ranks at the meeting place step by step, by one thread that plays both: who has come, and who
 * will not. */
#include <stdlib.h>
#include <string.h>

#include "common/format/place.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/meeting_table.h"

static const int32_t ones[4] = {1, 1, 1, 1};
static const void *const value[] = {ones};

static void arrive_both(struct table *table, uint64_t round)
{
    ck_assert_int_eq(meeting_arrive(&table->at[0], round, &one_number, value), MEETING_OPEN);
    ck_assert_int_eq(meeting_look(&table->at[0], round), MEETING_OPEN);
    ck_assert_int_eq(meeting_arrive(&table->at[1], round, &one_number, value), MEETING_MET);
    ck_assert_int_eq(meeting_look(&table->at[0], round), MEETING_MET);
}

static void take_both(struct table *table)
{
    for (uint32_t i = 0; i < 2; i++) {
        int32_t got = 0;
        meeting_take(&table->at[i], &one_number, (void *[]){&got});
        ck_assert_int_eq(got, 2);
    }
}

/* Each finds out for itself; it cannot become void; it is counted once. */
START_TEST(test_both_come)
{
    struct table table;
    table_set_of(&table, 2);
    const struct place_counts *counts =
        (const void *)((const uint8_t *)table.memory + PLACE_COUNTS_OFFSET);
    for (uint64_t round = 1; round <= 3 * MEETING_SLOTS; round++) {
        arrive_both(&table, round);
        ck_assert_int_eq(meeting_void(&table.at[0], round), MEETING_MET);
        ck_assert_int_eq(meeting_void(&table.at[1], round), MEETING_MET);
        take_both(&table);
        ck_assert_uint_eq(counts->collectives, round);
        ck_assert_uint_eq(counts->bytes, 8 * round);
    }
    free(table.memory);
}
END_TEST

/* One rank has come, and waits no longer: the other, which comes later, finds the round void. */
START_TEST(test_gives_up)
{
    struct table table;
    table_set_of(&table, 2);
    for (uint64_t round = 1; round <= 3 * MEETING_SLOTS; round++) {
        struct meeting *first = &table.at[round % 2], *second = &table.at[1 - round % 2];
        ck_assert_int_eq(meeting_arrive(first, round, &one_number, value), MEETING_OPEN);
        ck_assert_int_eq(meeting_void(first, round), MEETING_VOID);
        ck_assert_int_eq(meeting_look(first, round), MEETING_VOID);
        meeting_leave(first, round);
        ck_assert_int_eq(meeting_arrive(second, round, &one_number, value), MEETING_VOID);
        ck_assert(!meeting_may_come(second, &one_number));
        meeting_leave(second, round);
        ck_assert(meeting_may_come(second, &one_number));
        arrive_both(&table, ++round);
        take_both(&table);
    }
    free(table.memory);
}
END_TEST

/* One rank has the collective elsewhere: the other may have come, or comes then. */
START_TEST(test_declines)
{
    struct table table;
    table_set_of(&table, 2);
    for (uint64_t round = 1; round <= 3 * MEETING_SLOTS; round += 3) {
        ck_assert_int_eq(meeting_arrive(&table.at[0], round, &one_number, value), MEETING_OPEN);
        ck_assert_int_eq(meeting_void(&table.at[1], round), MEETING_VOID);
        ck_assert_int_eq(meeting_look(&table.at[0], round), MEETING_VOID);
        meeting_leave(&table.at[0], round);
        ck_assert_int_eq(meeting_void(&table.at[1], round + 1), MEETING_VOID);
        ck_assert_int_eq(meeting_arrive(&table.at[0], round + 1, &one_number, value), MEETING_VOID);
        meeting_leave(&table.at[0], round + 1);
        arrive_both(&table, round + 2);
        take_both(&table);
    }
    free(table.memory);
}
END_TEST

/* One rank has left with all of its line, or has gone on: the other meets nobody in the rounds
 * between. */
START_TEST(test_line_is_left)
{
    struct table table;
    table_set_of(&table, 2);
    for (uint64_t round = 1; round <= 4; round++)
        ck_assert_int_eq(meeting_arrive(&table.at[0], round, &one_number, value), MEETING_OPEN);
    ck_assert_int_eq(meeting_void(&table.at[0], 1), MEETING_VOID);
    meeting_leave(&table.at[0], 4);
    ck_assert_int_eq(meeting_arrive(&table.at[1], 1, &one_number, value), MEETING_VOID);
    meeting_leave(&table.at[1], 1);
    ck_assert_int_eq(meeting_arrive(&table.at[0], 5, &one_number, value), MEETING_OPEN);
    for (uint64_t round = 2; round <= 4; round++) {
        ck_assert_int_eq(meeting_arrive(&table.at[1], round, &one_number, value), MEETING_VOID);
        meeting_leave(&table.at[1], round);
        ck_assert_int_eq(meeting_look(&table.at[0], 5), MEETING_OPEN);
    }
    ck_assert_int_eq(meeting_arrive(&table.at[1], 5, &one_number, value), MEETING_MET);
    take_both(&table);
    free(table.memory);
}
END_TEST

/* Whoever knows it first leaves, and changes nothing that the other has still to compare. */
START_TEST(test_asks_differ)
{
    struct table table;
    struct meeting_ask other = one_number;
    other.identity = 1;
    table_set_of(&table, 2);
    arrive_both(&table, 1);
    take_both(&table);
    ck_assert_int_eq(meeting_arrive(&table.at[0], 2, &one_number, value), MEETING_OPEN);
    ck_assert_int_eq(meeting_arrive(&table.at[1], 2, &other, value), MEETING_VOID);
    meeting_leave(&table.at[1], 2);
    ck_assert_int_eq(meeting_arrive(&table.at[1], 3, &one_number, value), MEETING_VOID);
    ck_assert_int_eq(meeting_look(&table.at[1], 3), MEETING_VOID);
    meeting_leave(&table.at[1], 3);
    ck_assert_int_eq(meeting_look(&table.at[0], 2), MEETING_VOID);
    ck_assert_int_eq(meeting_void(&table.at[0], 2), MEETING_VOID);
    meeting_leave(&table.at[0], 2);
    ck_assert_int_eq(meeting_arrive(&table.at[0], 3, &one_number, value), MEETING_VOID);
    meeting_leave(&table.at[0], 3);
    arrive_both(&table, 4);
    take_both(&table);
    free(table.memory);
}
END_TEST

/* A collective that passes in pieces is begun once, whoever finds first that both have come. */
START_TEST(test_in_pieces)
{
    struct table table;
    uint64_t bytes = MEETING_AT_ONCE_BYTES + 1;
    uint8_t *sent = calloc(1, bytes), *got[2] = {calloc(1, bytes), calloc(1, bytes)};
    const void *send[] = {sent};
    struct meeting_ask large = {
        .kind = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_U8, .op = REDUCE_SUM, .count = bytes};
    ck_assert(sent && got[0] && got[1]);
    table_set_of(&table, 2);
    for (uint64_t round = 1; round <= 3; round++) {
        enum meeting_verdict verdict = MEETING_OPEN;
        memset(sent, (int)round, bytes);
        ck_assert_int_eq(meeting_arrive(&table.at[0], round, &large, send), MEETING_OPEN);
        ck_assert_int_eq(meeting_arrive(&table.at[1], round, &large, send), MEETING_TURN);
        ck_assert_int_eq(meeting_void(&table.at[0], round), MEETING_OPEN);
        ck_assert_int_eq(meeting_look(&table.at[0], round), MEETING_TURN);
        for (unsigned i = 0; verdict != MEETING_MET; i++)
            verdict = meeting_turn(&table.at[i % 2], round, &large, send, (void *[]){got[i % 2]});
        for (uint32_t i = 0; i < 2; i++) {
            ck_assert_int_eq(meeting_look(&table.at[i], round), MEETING_MET);
            meeting_take(&table.at[i], &large, (void *[]){got[i]});
            for (uint64_t n = 0; n < bytes; n++) {
                if (got[i][n] != 2 * round) /* each assertion takes its time */
                    ck_abort_msg("rank %u: element %u is %u", i, (unsigned)n, got[i][n]);
            }
        }
    }
    free(table.memory);
    free(got[0]);
    free(got[1]);
    free(sent);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("meeting_pair");
    TCase *core = tcase_create("core");
    tcase_add_test(core, test_both_come);
    tcase_add_test(core, test_gives_up);
    tcase_add_test(core, test_declines);
    tcase_add_test(core, test_line_is_left);
    tcase_add_test(core, test_asks_differ);
    tcase_add_test(core, test_in_pieces);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
