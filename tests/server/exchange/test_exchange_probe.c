/* Receives from any rank: who is asked, who answers and when, what is refused. */
#include "tests/lib/server/exchange_fixture_blocks.h"
#include "tests/lib/suite.h"

#define PLACES 64u

/* Ranks 0 and 3 are on node 0, 1 on node 2, 2 and 4 on node 1; node 3 is the server. */

static uint64_t number(uint32_t tag, uint32_t counter)
{
    return WIRE_SEND_SEQUENCE | (uint64_t)tag << WIRE_SEND_TAG_SHIFT | counter;
}

/* The rank has got numbers[i] from rank i. */
static struct arena_submission any_ask(struct fixture *fixture, uint32_t rank, uint32_t tag,
                                       uint64_t request, const uint32_t numbers[BLOCKS_RANKS])
{
    uint64_t offset = fixture_offset(fixture, rank, 7);
    memcpy(fixture->workers[rank].arena.base + offset, numbers, BLOCKS_RANKS * sizeof(uint32_t));
    return (struct arena_submission){.type = ARENA_SUBMIT,
                                     .kind = COLLECTIVE_SEND,
                                     .request = request,
                                     .sequence = number(tag, 0),
                                     .in_offset = offset,
                                     .flags = ARENA_FLAG_ANY};
}

static const uint32_t none[BLOCKS_RANKS] = {0};

static void submit_any(struct fixture *fixture, uint32_t rank, uint32_t tag, uint64_t request,
                       const uint32_t numbers[BLOCKS_RANKS])
{
    struct arena_submission it = any_ask(fixture, rank, tag, request, numbers);
    EXPECT_MSG(fixture_submit(fixture, rank, &it) == 0, "%s", fixture->error.text);
}

static void submit_send(struct fixture *fixture, uint32_t from, uint32_t to, uint64_t sequence)
{
    struct arena_submission it =
        block_ask(fixture, from, sequence, COLLECTIVE_SEND, 0, pair(from, to));
    it.request = 777;
    EXPECT_MSG(fixture_submit(fixture, from, &it) == 0, "%s", fixture->error.text);
}

static int probe(struct fixture *fixture, uint32_t node, uint8_t type, uint32_t block,
                 uint64_t sequence, uint32_t place, uint64_t version)
{
    struct wire_header header = fixture_header(node, type, sequence, place, 0);
    header.ask = (struct wire_ask){.kind = COLLECTIVE_SEND, .block = block, .count = version};
    return fixture_message(fixture, node, header, NULL, 0);
}

/* The rank was told that its request has found this one, and is told nothing else. */
static void expect_found(struct fixture *fixture, uint32_t rank, uint64_t request, uint32_t from)
{
    ck_assert_uint_eq(fixture->completion_count, 1);
    ck_assert_uint_eq(fixture->completions[0].it.chunk, from);
    ck_assert(fixture_completed(fixture, rank, request));
    ck_assert_uint_eq(fixture->workers[rank].transfers, 0);
    ck_assert_uint_eq(fixture->workers[rank].requests, 0);
}

static void leave(struct fixture *fixture, uint32_t rank)
{
    exchange_rank_left(fixture->exchange, FIXTURE_JOB, 0, rank, 0);
    fixture_run(fixture);
}

/* --- who waits -------------------------------------------------------------------------------- */

START_TEST(every_other_rank_is_asked)
{
    static const uint32_t numbers[BLOCKS_RANKS] = {1, 22, 333, 4444, 0xffffffff};
    struct fixture *fixture = blocks_fixture(0);
    submit_any(fixture, 3, 9, 50, numbers);
    ck_assert_uint_eq(fixture->send_count, 3);
    static const uint32_t others[] = {1, 2, 4};
    uint64_t version = 0;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t from = others[i];
        uint32_t at = find_send(fixture, blocks_rank_nodes[from], WIRE_PROBE, pair(from, 3));
        struct wire_header header = fixture_sending(fixture, at);
        ck_assert_uint_eq(header.sequence, number(9, numbers[from]));
        ck_assert_uint_eq(header.payload_bytes, 0);
        ck_assert(i == 0 || header.ask.count == version);
        version = header.ask.count;
    }
    fixture_all_sent(fixture);
    ck_assert_uint_eq(fixture->completion_count, 0);
    /* the first answer counts; later ones are for nothing */
    ck_assert_int_eq(probe(fixture, 1, WIRE_READY, pair(4, 3), number(9, 0xffffffff), 0, version),
                     0);
    expect_found(fixture, 3, 50, 4);
    ck_assert_int_eq(probe(fixture, 1, WIRE_READY, pair(2, 3), number(9, 333), 0, version), 0);
    ck_assert_int_eq(probe(fixture, 2, WIRE_GONE, pair(1, 3), number(9, 22), 0, version), 0);
    ck_assert_uint_eq(fixture->completion_count, 0);
    fixture_destroy(fixture);
}
END_TEST

/* Answers to something else: an older probe in the same place, another number, another place. */
START_TEST(answers_out_of_date_are_dropped)
{
    struct fixture *fixture = blocks_fixture(0);
    submit_any(fixture, 0, 1, 50, none);
    uint64_t first = fixture_sending(fixture, 0).ask.count;
    fixture_all_sent(fixture);
    ck_assert_int_eq(probe(fixture, 1, WIRE_READY, pair(2, 0), number(1, 0), 0, first), 0);
    expect_found(fixture, 0, 50, 2);
    submit_any(fixture, 0, 1, 51, none);
    uint64_t second = fixture_sending(fixture, 0).ask.count;
    ck_assert_uint_gt(second, first);
    fixture_all_sent(fixture);
    ck_assert_int_eq(probe(fixture, 1, WIRE_READY, pair(2, 0), number(1, 0), 0, first), 0);
    ck_assert_int_eq(probe(fixture, 1, WIRE_READY, pair(2, 0), number(1, 1), 0, second), 0);
    ck_assert_int_eq(probe(fixture, 1, WIRE_READY, pair(2, 0), number(2, 0), 0, second), 0);
    ck_assert_int_eq(probe(fixture, 1, WIRE_READY, pair(2, 0), number(1, 0), 1, second), 0);
    ck_assert_int_eq(probe(fixture, 1, WIRE_READY, pair(2, 3), number(1, 0), 0, second), 0);
    ck_assert_uint_eq(fixture->completion_count, 0);
    ck_assert_int_eq(probe(fixture, 1, WIRE_READY, pair(2, 0), number(1, 0), 0, second), 0);
    expect_found(fixture, 0, 51, 2);
    fixture_destroy(fixture);
}
END_TEST

/* A rank of the same node, before and after. */
START_TEST(a_sender_on_the_same_node)
{
    struct fixture *fixture = blocks_fixture(0);
    if (_i == 0)
        submit_send(fixture, 0, 3, number(5, 2));
    static const uint32_t numbers[BLOCKS_RANKS] = {2};
    submit_any(fixture, 3, 5, 50, numbers);
    if (_i == 0)
        ck_assert_uint_eq(fixture->send_count, 0); /* nobody else need be asked */
    else
        submit_send(fixture, 0, 3, number(5, 2));
    expect_found(fixture, 3, 50, 0);
    fixture_all_sent(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* Sends whose number is below what was asked for, of another tag, or to another rank, do not count;
 * a later one does: then this rank has got the others otherwise. */
START_TEST(only_what_has_not_come_counts)
{
    struct fixture *fixture = blocks_fixture(0);
    static const uint32_t numbers[BLOCKS_RANKS] = {5};
    submit_send(fixture, 0, 3, number(1, 4));
    submit_send(fixture, 0, 3, number(2, 5));
    submit_send(fixture, 0, 2, number(1, 5));
    submit_any(fixture, 3, 1, 50, numbers);
    ck_assert_uint_eq(fixture->completion_count, 0);
    submit_send(fixture, 0, 3, number(1, 6));
    expect_found(fixture, 3, 50, 0);
    fixture_all_sent(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* Numbers go round. */
START_TEST(numbers_wrap)
{
    struct fixture *fixture = blocks_fixture(0);
    static const uint32_t numbers[BLOCKS_RANKS] = {0xffffffff};
    submit_any(fixture, 3, 1, 50, numbers);
    submit_send(fixture, 0, 3, number(1, 0xfffffffe));
    ck_assert_uint_eq(fixture->completion_count, 0);
    submit_send(fixture, 0, 3, number(1, 0));
    expect_found(fixture, 3, 50, 0);
    fixture_all_sent(fixture);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(nobody_is_left)
{
    struct fixture *fixture = blocks_fixture(0);
    submit_any(fixture, 0, 1, 50, none);
    uint64_t version = fixture_sending(fixture, 0).ask.count;
    fixture_all_sent(fixture);
    leave(fixture, 3);
    leave(fixture, 1); /* its own node says so */
    ck_assert_int_eq(probe(fixture, 1, WIRE_GONE, pair(2, 0), number(1, 0), 0, version), 0);
    ck_assert_int_eq(probe(fixture, 1, WIRE_GONE, pair(2, 0), number(1, 0), 0, version), 0);
    ck_assert_int_eq(probe(fixture, 1, WIRE_GONE, pair(4, 0), number(1, 0), 0, version), 0);
    ck_assert_uint_eq(fixture->completion_count, 0);
    ck_assert_int_eq(probe(fixture, 2, WIRE_GONE, pair(1, 0), number(1, 0), 0, version), 0);
    expect_found(fixture, 0, 50, UINT32_MAX);
    fixture_destroy(fixture);
}
END_TEST

/* --- who is asked ----------------------------------------------------------------------------- */

static void expect_answer(struct fixture *fixture, uint32_t node, uint8_t type, uint32_t block,
                          uint64_t sequence, uint32_t place, uint64_t version)
{
    struct wire_header header = fixture_sending(fixture, find_send(fixture, node, type, block));
    ck_assert_uint_eq(header.sequence, sequence);
    ck_assert_uint_eq(header.chunk, place);
    ck_assert_uint_eq(header.ask.count, version);
    fixture_sent(fixture, find_send(fixture, node, type, block));
}

START_TEST(a_probe_is_answered_once)
{
    struct fixture *fixture = blocks_fixture(0);
    if (_i == 0)
        submit_send(fixture, 0, 2, number(3, 7));
    ck_assert_int_eq(probe(fixture, 1, WIRE_PROBE, pair(0, 2), number(3, 7), 63, 5), 0);
    if (_i == 1) {
        ck_assert_uint_eq(fixture->send_count, 0);
        submit_send(fixture, 0, 2, number(3, 7));
    }
    expect_answer(fixture, 1, WIRE_READY, pair(0, 2), number(3, 7), 63, 5);
    submit_send(fixture, 0, 2, number(3, 8));
    ck_assert_uint_eq(fixture->send_count, 0);
    fixture_destroy(fixture);
}
END_TEST

/* A place has one probe: the last one, whatever the order in which they come. */
START_TEST(a_later_probe_replaces_it)
{
    struct fixture *fixture = blocks_fixture(0);
    ck_assert_int_eq(probe(fixture, 1, WIRE_PROBE, pair(0, 2), number(3, 0), 2, 10), 0);
    ck_assert_int_eq(probe(fixture, 1, WIRE_PROBE, pair(0, 2), number(4, 0), 2, 12), 0);
    ck_assert_int_eq(probe(fixture, 1, WIRE_PROBE, pair(0, 2), number(3, 0), 2, 11), 0);
    ck_assert_int_eq(probe(fixture, 1, WIRE_PROBE, pair(0, 4), number(3, 0), 2, 9), 0);
    submit_send(fixture, 0, 2, number(3, 0));
    ck_assert_uint_eq(fixture->send_count, 0);
    submit_send(fixture, 0, 2, number(4, 0));
    expect_answer(fixture, 1, WIRE_READY, pair(0, 2), number(4, 0), 2, 12);
    ck_assert_uint_eq(fixture->send_count, 0);
    fixture_destroy(fixture);
}
END_TEST

/* Sends that a rank made before it left are there; others will not come. */
START_TEST(a_rank_that_has_left_answers_for_itself)
{
    struct fixture *fixture = blocks_fixture(0);
    submit_send(fixture, 0, 2, number(1, 0));
    ck_assert_int_eq(probe(fixture, 1, WIRE_PROBE, pair(0, 2), number(1, 1), 0, 1), 0);
    ck_assert_int_eq(probe(fixture, 1, WIRE_PROBE, pair(3, 2), number(1, 1), 0, 1), 0);
    leave(fixture, 1);
    ck_assert_uint_eq(fixture->send_count, 0);
    leave(fixture, 0);
    expect_answer(fixture, 1, WIRE_GONE, pair(0, 2), number(1, 1), 0, 1);
    ck_assert_int_eq(probe(fixture, 1, WIRE_PROBE, pair(0, 2), number(1, 0), 0, 2), 0);
    expect_answer(fixture, 1, WIRE_READY, pair(0, 2), number(1, 0), 0, 2);
    ck_assert_int_eq(probe(fixture, 1, WIRE_PROBE, pair(0, 2), number(2, 0), 1, 3), 0);
    expect_answer(fixture, 1, WIRE_GONE, pair(0, 2), number(2, 0), 1, 3);
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_destroy(fixture);
}
END_TEST

/* --- nonsense --------------------------------------------------------------------------------- */

START_TEST(a_workers_nonsense_is_refused)
{
    struct fixture *fixture = blocks_fixture(0);
    const struct arena_submission good = any_ask(fixture, 0, 1, 50, none);
    struct arena_submission it = good;
    it.sequence = 5;
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL, "makes no sense");
    it = good;
    it.block = pair(2, 0);
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL, "makes no sense");
    it = good;
    it.flags |= ARENA_FLAG_STAGED;
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL, "makes no sense");
    it = good;
    it.in_offset = 64;
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL,
                         "numbers at offset 64 of 20 bytes are not inside the arena");
    it = good;
    it.kind = COLLECTIVE_ALL_TO_ALL;
    it.sequence = 0;
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL,
                         "unknown flags 0x2");
    ck_assert_uint_eq(fixture->send_count, 0);
    for (uint32_t i = 0; i < PLACES; i++) {
        submit_any(fixture, 0, i, i, none);
        fixture_all_sent(fixture);
    }
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &good), ERR_MEMORY,
                         "more than 64 receives from any rank");
    /* one that has found somebody makes room */
    submit_send(fixture, 3, 0, number(17, 0));
    ck_assert(fixture_completed(fixture, 0, 17));
    submit_any(fixture, 0, 99, 99, none);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_peers_nonsense_ends_its_connection)
{
    struct fixture *fixture = blocks_fixture(0);
    for (uint8_t type = WIRE_PROBE; type <= WIRE_GONE; type++) {
        uint32_t right = type == WIRE_PROBE ? pair(0, 2) : pair(2, 0);
        uint32_t other = type == WIRE_PROBE ? pair(2, 0) : pair(0, 2);
        const char *nonsense = "a probe, or an answer to one, that makes no sense";
        const char *elsewhere = "of which one is elsewhere";
        fixture_expect_error(fixture, probe(fixture, 1, type, right, 5, 0, 1), ERR_PROTOCOL,
                             nonsense);
        fixture_expect_error(fixture, probe(fixture, 1, type, right, number(0, 0), PLACES, 1),
                             ERR_PROTOCOL, nonsense);
        fixture_expect_error(fixture, probe(fixture, 1, type, 0, number(0, 0), 0, 1), ERR_PROTOCOL,
                             nonsense);
        fixture_expect_error(fixture, probe(fixture, 1, type, pair(0, 0), number(0, 0), 0, 1),
                             ERR_PROTOCOL, nonsense);
        struct wire_header header = fixture_header(1, type, number(0, 0), 0, 0);
        header.ask = (struct wire_ask){.kind = COLLECTIVE_SEND, .block = right};
        fixture_expect_error(fixture, fixture_message(fixture, 1, header, "1234", 4), ERR_PROTOCOL,
                             nonsense);
        header.ask.kind = COLLECTIVE_ALL_TO_ALL;
        fixture_expect_error(fixture, fixture_message(fixture, 1, header, NULL, 0), ERR_PROTOCOL,
                             "a message for all_to_all numbered");
        fixture_expect_error(fixture, probe(fixture, 1, type, other, number(0, 0), 0, 1),
                             ERR_PROTOCOL, elsewhere);
        fixture_expect_error(fixture, probe(fixture, 2, type, right, number(0, 0), 0, 1),
                             ERR_PROTOCOL, elsewhere);
        fixture_expect_error(fixture, probe(fixture, 1, type, pair(1, 2), number(0, 0), 0, 1),
                             ERR_PROTOCOL, elsewhere);
        ck_assert_int_eq(probe(fixture, 1, type, right, number(0, 0), 0, 1), 0);
    }
    fixture_destroy(fixture);
}
END_TEST

/* Receives and probes that wait go with the group, on both sides. */
START_TEST(a_group_that_fails_forgets)
{
    struct fixture *fixture = blocks_fixture(0);
    submit_any(fixture, 0, 1, 50, none);
    submit_any(fixture, 3, 1, 50, none);
    ck_assert_int_eq(probe(fixture, 1, WIRE_PROBE, pair(0, 2), number(0, 0), 0, 1), 0);
    ck_assert_uint_eq(fixture->workers[0].transfers, 1);
    exchange_group_stop(fixture->exchange, FIXTURE_JOB, 0);
    fixture_all_sent(fixture);
    ck_assert_uint_eq(fixture->workers[0].transfers, 0);
    ck_assert_uint_eq(fixture->workers[3].transfers, 0);
    ck_assert_int_eq(probe(fixture, 1, WIRE_READY, pair(2, 0), number(1, 0), 0, 1), 0);
    ck_assert_uint_eq(fixture->completion_count, 0);
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_probe");
    TCase *waits = tcase_create("waits");
    tcase_add_test(waits, every_other_rank_is_asked);
    tcase_add_test(waits, answers_out_of_date_are_dropped);
    tcase_add_loop_test(waits, a_sender_on_the_same_node, 0, 2);
    tcase_add_test(waits, only_what_has_not_come_counts);
    tcase_add_test(waits, numbers_wrap);
    tcase_add_test(waits, nobody_is_left);
    suite_add_tcase(suite, waits);
    TCase *asked = tcase_create("asked");
    tcase_add_loop_test(asked, a_probe_is_answered_once, 0, 2);
    tcase_add_test(asked, a_later_probe_replaces_it);
    tcase_add_test(asked, a_rank_that_has_left_answers_for_itself);
    suite_add_tcase(suite, asked);
    TCase *refusals = tcase_create("refusals");
    tcase_add_test(refusals, a_workers_nonsense_is_refused);
    tcase_add_test(refusals, a_peers_nonsense_ends_its_connection);
    tcase_add_test(refusals, a_group_that_fails_forgets);
    suite_add_tcase(suite, refusals);
    return suite_main(suite);
}
