#include "server/exchange/model/disagreement.h"

#include <string.h>

#include "common/reduce/dtype.h"
#include "tests/lib/suite.h"

static struct wire_ask sum_of(uint64_t count)
{
    return (struct wire_ask){
        .kind = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_F32, .op = REDUCE_SUM, .count = count};
}

static const struct wire_ask barrier = {.kind = COLLECTIVE_BARRIER};

START_TEST(one_rank_against_others)
{
    struct disagreement all;
    disagreement_init(&all, 0, 64, 3);
    struct wire_ask ask = sum_of(8);
    disagreement_add(&all, 0, &ask);
    disagreement_add(&all, 1, &barrier);
    disagreement_add(&all, 2, &barrier);
    char text[512];
    size_t length = disagreement_text(&all, text, sizeof(text));
    ck_assert_str_eq(text, "collective 3 of group 0 differs between ranks: rank 0 asked for "
                           "all_reduce sum float count 8; ranks 1, 2 asked for barrier");
    ck_assert_uint_eq(length, strlen(text));
}
END_TEST

START_TEST(ranks_are_named_as_they_come_and_asks_once)
{
    struct disagreement all;
    disagreement_init(&all, 7, 64, 1ull << 40);
    struct wire_ask small = sum_of(1), large = sum_of(2);
    disagreement_add(&all, 5, &small);
    disagreement_add(&all, 3, &large);
    disagreement_add(&all, 9, &small);
    struct wire_ask rooted = small; /* an all_reduce has no root: the same ask */
    rooted.root = 4;
    disagreement_add(&all, 1, &rooted);
    ck_assert_uint_eq(all.ask_count, 2);
    char text[512];
    disagreement_text(&all, text, sizeof(text));
    ck_assert_str_eq(text, "collective 1099511627776 of group 7 differs between ranks: ranks 5, 9, "
                           "1 asked for all_reduce sum float count 1; rank 3 asked for all_reduce "
                           "sum float count 2");
}
END_TEST

START_TEST(sends_have_a_tag)
{
    struct disagreement all;
    disagreement_init(&all, 1, 8,
                      WIRE_SEND_SEQUENCE | (uint64_t)WIRE_SEND_TAG_MAX << WIRE_SEND_TAG_SHIFT | 5);
    struct wire_ask ask = {
        .kind = COLLECTIVE_SEND, .dtype = DTYPE_U8, .block = 1 + 2 * 8 + 3, .count = 4};
    disagreement_add(&all, 12, &ask);
    ask.count = 3;
    disagreement_add(&all, 13, &ask);
    char text[512];
    disagreement_text(&all, text, sizeof(text));
    ck_assert_str_eq(
        text, "send 5 with tag 2147483647 in group 1 differs between its ranks: rank 12 asked "
              "for send uint8 count 4 from rank 2 to rank 3 of the group; rank 13 asked for "
              "send uint8 count 3 from rank 2 to rank 3 of the group");
}
END_TEST

START_TEST(beyond_sixteen_ranks_are_counted)
{
    struct disagreement all;
    disagreement_init(&all, 0, 64, 0);
    for (uint32_t rank = 0; rank < 16; rank++)
        disagreement_add(&all, rank, &barrier);
    char text[512];
    disagreement_text(&all, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "14, 15 asked for barrier"));
    for (uint32_t rank = 16; rank < 1000; rank++)
        disagreement_add(&all, rank, &barrier);
    disagreement_text(&all, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "14, 15 and 984 more asked for barrier"));
}
END_TEST

START_TEST(beyond_eight_asks_are_counted)
{
    struct disagreement all;
    disagreement_init(&all, 0, 64, 0);
    for (uint32_t rank = 0; rank < 8; rank++) {
        struct wire_ask ask = sum_of(rank);
        disagreement_add(&all, rank, &ask);
    }
    char text[ERROR_TEXT_BYTES];
    disagreement_text(&all, text, sizeof(text));
    ck_assert_ptr_null(strstr(text, "other things"));
    for (uint32_t rank = 8; rank < 20; rank++) {
        struct wire_ask ask = sum_of(rank);
        disagreement_add(&all, rank, &ask);
    }
    struct wire_ask known = sum_of(7);
    disagreement_add(&all, 20, &known);
    ck_assert_uint_eq(all.ask_count, 8);
    ck_assert_uint_eq(all.others, 12);
    disagreement_text(&all, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "ranks 7, 20 asked for"));
    ck_assert_ptr_nonnull(strstr(text, "; 12 more asked for other things"));
}
END_TEST

/* The most that there can be to say, at every length of room: cut, ended, nothing beyond. */
START_TEST(text_is_cut_where_the_room_ends)
{
    struct disagreement all;
    disagreement_init(&all, UINT32_MAX, 64, UINT64_MAX);
    for (uint32_t i = 0; i < 9; i++) {
        struct wire_ask ask = {.kind = COLLECTIVE_REDUCE,
                               .dtype = DTYPE_BF16,
                               .op = REDUCE_PROD,
                               .root = UINT32_MAX - i,
                               .count = UINT64_MAX};
        for (uint32_t k = 0; k < 17; k++)
            disagreement_add(&all, UINT32_MAX - k, &ask);
    }
    char whole[8192];
    size_t full = disagreement_text(&all, whole, sizeof(whole));
    ck_assert_uint_eq(full, strlen(whole));
    ck_assert_uint_gt(full, ERROR_TEXT_BYTES);
    for (size_t room = 1; room <= full + 2; room++) {
        char text[8192];
        memset(text, '#', sizeof(text));
        size_t length = disagreement_text(&all, text, room);
        size_t expected = room - 1 < full ? room - 1 : full;
        if (length != expected || strlen(text) != expected || text[room] != '#' ||
            strncmp(text, whole, expected) != 0)
            ck_abort_msg("room %zu: %zu", room, length);
    }
}
END_TEST

START_TEST(nobody_has_asked)
{
    struct disagreement all;
    disagreement_init(&all, 1, 64, 2);
    char text[128];
    disagreement_text(&all, text, sizeof(text));
    ck_assert_str_eq(text, "collective 2 of group 1 differs between ranks");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("disagreement");
    TCase *tests = tcase_create("disagreement");
    tcase_add_test(tests, one_rank_against_others);
    tcase_add_test(tests, ranks_are_named_as_they_come_and_asks_once);
    tcase_add_test(tests, sends_have_a_tag);
    tcase_add_test(tests, beyond_sixteen_ranks_are_counted);
    tcase_add_test(tests, beyond_eight_asks_are_counted);
    tcase_add_test(tests, text_is_cut_where_the_room_ends);
    tcase_add_test(tests, nobody_has_asked);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
