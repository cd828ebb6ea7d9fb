/* Collectives that all ranks of a group hold: what nodes tell each other of them, and their ranks;
 * and that a send is done only when it has come. */
#include "tests/lib/server/exchange_fixture_blocks.h"
#include "tests/lib/suite.h"

#include "common/base/error.h"
#include "server/exchange/node/stability.h"

#define COUNT FIXTURE_CHUNK

/* Nodes 0 to 2 have a rank each; the servers have weights. */
static struct fixture *three_nodes(uint32_t self, uint32_t server, bool no_recovery)
{
    struct fixture_options options = {.self = self,
                                      .nodes = 4,
                                      .ranks = 3,
                                      .rank_nodes = {0, 1, 2},
                                      .window = 8,
                                      .late_ns = 1ull << 40,
                                      .recovery = true,
                                      .no_recovery = no_recovery};
    options.weights[server] = 1;
    return fixture_create(&options);
}

static const struct exchange_group *group_of(const struct fixture *fixture)
{
    return fixture->exchange->jobs->groups;
}

static struct wire_header word_header(uint32_t node, uint8_t type, uint64_t sequence)
{
    struct wire_header header = fixture_header(node, type, sequence, 0, 0);
    header.ask = (struct wire_ask){0};
    return header;
}

static int say(struct fixture *fixture, uint32_t node, uint8_t type, uint64_t sequence)
{
    int result = fixture_message(fixture, node, word_header(node, type, sequence), NULL, 0);
    fixture_run(fixture);
    return result;
}

/* The only send that waits is this one; it is sent. */
static void expect_word(struct fixture *fixture, uint32_t node, uint8_t type, uint64_t sequence)
{
    ck_assert_uint_ge(fixture->send_count, 1);
    struct wire_header sent = fixture_sending(fixture, 0);
    ck_assert_uint_eq(sent.type, type);
    ck_assert_uint_eq(fixture->sends[0]->node, node);
    ck_assert_uint_eq(sent.sequence, sequence);
    ck_assert_uint_eq(sent.payload_bytes, 0);
}

/* Takes what the rank was told of group 0, the first of it: 0, if nothing. */
static uint64_t told(struct fixture *fixture, uint32_t rank)
{
    for (uint32_t i = 0; i < fixture->completion_count; i++) {
        struct fixture_completion it = fixture->completions[i];
        if (it.rank != rank || it.it.type != ARENA_STABLE)
            continue;
        ck_assert_uint_eq(it.it.group, 0);
        memmove(&fixture->completions[i], &fixture->completions[i + 1],
                (--fixture->completion_count - i) * sizeof(it));
        return it.it.sequence;
    }
    return 0;
}

static void give(struct fixture *fixture, uint32_t rank, uint64_t sequence)
{
    fixture_submit_sum(fixture, rank, sequence, COUNT);
    fixture_all_reduced(fixture);
    fixture_all_sent(fixture);
}

static void get(struct fixture *fixture, uint32_t server, uint64_t sequence)
{
    ck_assert_int_eq(fixture_result(fixture, server, sequence, 0, COUNT, 1), 0);
    fixture_all_reduced(fixture);
}

/* --- a node that is not the root -------------------------------------------------------------- */

START_TEST(test_a_node_says_what_it_holds)
{
    struct fixture *fixture = three_nodes(0, 3, false);
    for (uint64_t sequence = 0; sequence < 4; sequence++)
        give(fixture, 0, sequence);
    get(fixture, 3, 1); /* there is a gap before it */
    ck_assert(fixture_completed(fixture, 0, 101));
    ck_assert_uint_eq(fixture->send_count, 0);
    get(fixture, 3, 0);
    expect_word(fixture, 3, WIRE_HELD, 2);
    get(fixture, 3, 2); /* one word is under way at most */
    get(fixture, 3, 3);
    ck_assert_uint_eq(fixture->send_count, 1);
    fixture_sent(fixture, 0);
    fixture_run(fixture);
    expect_word(fixture, 3, WIRE_HELD, 4);
    fixture_all_sent(fixture);
    fixture_run(fixture);
    ck_assert_uint_eq(fixture->send_count, 0);
    ck_assert(!exchange_idle(fixture->exchange)); /* it waits for the root */
    ck_assert_uint_eq(told(fixture, 0), 0);
    ck_assert_int_eq(say(fixture, 3, WIRE_STABLE, 1), 0);
    ck_assert_uint_eq(told(fixture, 0), 1);
    ck_assert_int_eq(say(fixture, 3, WIRE_STABLE, 4), 0);
    ck_assert_uint_eq(told(fixture, 0), 4);
    ck_assert_uint_eq(told(fixture, 0), 0);
    ck_assert(exchange_idle(fixture->exchange));
    fixture_destroy(fixture);
}
END_TEST

/* A collective in blocks is held when the rank has all of them, and has asked for the last. */
START_TEST(test_blocks_are_held_together)
{
    struct fixture_options options = {.nodes = 2,
                                      .ranks = 1,
                                      .rank_nodes = {0},
                                      .weights = {1, 0},
                                      .late_ns = 1ull << 40,
                                      .recovery = true};
    options.ranks = 2; /* of one node */
    struct fixture *fixture = fixture_create(&options);
    for (uint32_t block = 0; block <= 2; block++) {
        ck_assert_uint_eq(told(fixture, 0), 0);
        for (uint32_t rank = 0; rank < 2; rank++) {
            struct arena_submission it = fixture_ask(fixture, rank, 0, COUNT);
            it.kind = COLLECTIVE_ALL_GATHER;
            it.block = block;
            it.count = block ? COUNT : 2 * COUNT;
            it.request = 100 + block;
            ck_assert_int_eq(fixture_submit(fixture, rank, &it), 0);
            fixture_all_reduced(fixture);
            fixture_run(fixture);
        }
    }
    ck_assert(fixture_completed(fixture, 0, 102));
    ck_assert_uint_eq(told(fixture, 0), 1);
    ck_assert_uint_eq(told(fixture, 1), 1);
    fixture_destroy(fixture);
}
END_TEST

/* A group on one node needs nobody's word. */
START_TEST(test_one_node_alone)
{
    struct fixture_options options = {.nodes = 1,
                                      .ranks = 2,
                                      .weights = {1},
                                      .late_ns = 1ull << 40,
                                      .recovery = true,
                                      .no_recovery = _i == 1};
    struct fixture *fixture = fixture_create(&options);
    for (uint64_t sequence = 0; sequence < 3; sequence++) {
        give(fixture, 0, sequence);
        ck_assert_uint_eq(told(fixture, 0), 0);
        give(fixture, 1, sequence);
        for (uint32_t rank = 0; rank < 2; rank++)
            ck_assert_uint_eq(told(fixture, rank), _i == 1 ? 0 : sequence + 1);
    }
    ck_assert_uint_eq(fixture->send_count, 0);
    fixture_destroy(fixture);
}
END_TEST

/* --- the root --------------------------------------------------------------------------------- */

static void finish_as_owner(struct fixture *fixture, uint64_t sequence)
{
    give(fixture, 0, sequence);
    for (uint32_t node = 1; node <= 2; node++)
        ck_assert_int_eq(fixture_contribute(fixture, node, sequence, 0, COUNT, 1), 0);
    fixture_all_reduced(fixture);
    fixture_all_sent(fixture);
    fixture_run(fixture);
}

START_TEST(test_the_root_answers_with_the_least)
{
    struct fixture *fixture = three_nodes(0, 0, false);
    for (uint64_t sequence = 0; sequence < 3; sequence++)
        finish_as_owner(fixture, sequence);
    ck_assert(!exchange_idle(fixture->exchange)); /* the others may lack what it holds */
    ck_assert_int_eq(say(fixture, 1, WIRE_HELD, 3), 0);
    ck_assert_uint_eq(fixture->send_count, 0);
    ck_assert_uint_eq(told(fixture, 0), 0);
    ck_assert_int_eq(say(fixture, 2, WIRE_HELD, 2), 0);
    ck_assert_uint_eq(told(fixture, 0), 2);
    ck_assert_uint_eq(fixture->send_count, 2);
    expect_word(fixture, 1, WIRE_STABLE, 2);
    ck_assert_uint_eq(fixture_sending(fixture, 1).type, WIRE_STABLE);
    ck_assert_uint_eq(fixture->sends[1]->node, 2);
    fixture_sent(fixture, 1); /* the other one is still under way */
    ck_assert_int_eq(say(fixture, 2, WIRE_HELD, 3), 0);
    ck_assert_uint_eq(fixture->send_count, 2);
    fixture_sent(fixture, 1);
    fixture_sent(fixture, 0);
    fixture_run(fixture);
    expect_word(fixture, 1, WIRE_STABLE, 3);
    fixture_all_sent(fixture);
    ck_assert_uint_eq(told(fixture, 0), 3);
    ck_assert(exchange_idle(fixture->exchange));
    fixture_destroy(fixture);
}
END_TEST

/* A server without ranks. */
START_TEST(test_a_root_without_ranks)
{
    struct fixture *fixture = three_nodes(3, 3, false);
    for (uint32_t node = 0; node < 3; node++) {
        ck_assert_uint_eq(fixture->send_count, 0);
        ck_assert_int_eq(say(fixture, node, WIRE_HELD, 5 + node), 0);
    }
    ck_assert_uint_eq(fixture->send_count, 3);
    expect_word(fixture, 0, WIRE_STABLE, 5);
    fixture_all_sent(fixture);
    ck_assert(!exchange_idle(fixture->exchange));
    ck_assert_int_eq(say(fixture, 0, WIRE_HELD, 7), 0);
    ck_assert_int_eq(say(fixture, 1, WIRE_HELD, 7), 0);
    fixture_all_sent(fixture);
    fixture_run(fixture);
    fixture_all_sent(fixture);
    ck_assert(exchange_idle(fixture->exchange));
    fixture_destroy(fixture);
}
END_TEST

/* Groups take turns among the servers: group 1 of two has the second. */
START_TEST(test_groups_have_other_roots)
{
    struct fixture_options options = {.nodes = 2,
                                      .ranks = 2,
                                      .rank_nodes = {0, 1},
                                      .weights = {1, 1},
                                      .late_ns = 1ull << 40,
                                      .recovery = true};
    struct fixture *fixture = fixture_create(&options);
    const uint32_t ranks[] = {0, 1};
    struct error error;
    ck_assert_int_eq(exchange_group_open(fixture->exchange, FIXTURE_JOB, 1, ranks, 2, &error), 0);
    for (const struct exchange_group *it = group_of(fixture); it; it = it->next)
        ck_assert_uint_eq(it->stability->root, it->id);
    struct wire_header header = word_header(1, WIRE_STABLE, 1);
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, NULL, 0), ERR_PROTOCOL,
                         "no part in that");
    header.group = 1;
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, NULL, 0), ERR_PROTOCOL,
                         "of 0 held here");
    fixture_destroy(fixture);
}
END_TEST

/* --- jobs that do not pay ----------------------------------------------------------------------*/

START_TEST(test_without_recovery_nothing_is_said)
{
    struct fixture *fixture = three_nodes(0, 3, true);
    ck_assert_ptr_null(group_of(fixture)->stability);
    give(fixture, 0, 0);
    get(fixture, 3, 0);
    fixture_run(fixture);
    ck_assert_uint_eq(fixture->send_count, 0);
    ck_assert_uint_eq(told(fixture, 0), 0);
    ck_assert(exchange_idle(fixture->exchange));
    fixture_expect_error(fixture, say(fixture, 3, WIRE_STABLE, 1), ERR_PROTOCOL, "no part in that");
    fixture_destroy(fixture);
}
END_TEST

/* --- what cannot be said ---------------------------------------------------------------------- */

START_TEST(test_words_that_cannot_be)
{
    struct fixture *fixture = three_nodes(0, 3, false);
    give(fixture, 0, 0);
    get(fixture, 3, 0);
    fixture_all_sent(fixture);
    fixture_expect_error(fixture, say(fixture, 3, WIRE_STABLE, 2), ERR_PROTOCOL, "of 1 held here");
    fixture_expect_error(fixture, say(fixture, 3, WIRE_STABLE, 0), ERR_PROTOCOL, "something else");
    fixture_expect_error(fixture, say(fixture, 2, WIRE_STABLE, 1), ERR_PROTOCOL, "no part");
    fixture_expect_error(fixture, say(fixture, 1, WIRE_HELD, 1), ERR_PROTOCOL, "no part");
    ck_assert_int_eq(say(fixture, 3, WIRE_STABLE, 1), 0);
    fixture_expect_error(fixture, say(fixture, 3, WIRE_STABLE, 1), ERR_PROTOCOL, "after 1, of 1");
    for (int field = 0; field < 7; field++) {
        struct wire_header header = word_header(3, WIRE_STABLE, 1);
        header.chunk = field == 0;
        header.ask = (struct wire_ask){.kind = field == 1,
                                       .dtype = field == 2,
                                       .op = field == 3,
                                       .root = field == 4,
                                       .block = field == 5,
                                       .count = field == 6};
        fixture_expect_error(fixture, fixture_message(fixture, 3, header, NULL, 0), ERR_PROTOCOL,
                             "something else");
    }
    fixture_expect_error(fixture,
                         fixture_message(fixture, 3, word_header(3, WIRE_STABLE, 1), "x", 1),
                         ERR_PROTOCOL, "something else");
    fixture_destroy(fixture);
}
END_TEST

START_TEST(test_words_to_the_root_that_cannot_be)
{
    struct fixture *fixture = three_nodes(0, 0, false);
    finish_as_owner(fixture, 0);
    fixture_expect_error(fixture, say(fixture, 1, WIRE_HELD, 2), ERR_PROTOCOL,
                         "have not begun as many");
    ck_assert_int_eq(say(fixture, 1, WIRE_HELD, 1), 0);
    fixture_expect_error(fixture, say(fixture, 1, WIRE_HELD, 1), ERR_PROTOCOL,
                         "are held, it says, after 1");
    fixture_expect_error(fixture, say(fixture, 1, WIRE_STABLE, 1), ERR_PROTOCOL, "no part");
    fixture_destroy(fixture);
}
END_TEST

/* --- ranks that do not listen, groups that end ------------------------------------------------ */

/* A ring that is half full takes no news; the next tick looks again, and the latest is enough. */
START_TEST(test_a_rank_that_does_not_read)
{
    struct fixture *fixture = three_nodes(0, 3, false);
    struct arena *arena = &fixture->workers[0].arena, reader;
    const struct arena_completion news = {.type = ARENA_REQUEST_DONE};
    ck_assert_int_eq(
        arena_attach_memory(&reader, fixture->memory[0], arena->total_bytes, &fixture->error), 0);
    while (arena_has_room_for_news(arena))
        ck_assert(arena_push_completion(arena, &news));
    for (uint64_t sequence = 0; sequence < 2; sequence++) {
        give(fixture, 0, sequence);
        get(fixture, 3, sequence);
        fixture_all_sent(fixture);
        ck_assert_int_eq(say(fixture, 3, WIRE_STABLE, sequence + 1), 0);
        exchange_tick(fixture->exchange, ++fixture->now_ns);
        fixture_run(fixture);
        ck_assert_uint_eq(told(fixture, 0), 0);
    }
    struct arena_completion read;
    ck_assert(arena_pop_completion(&reader, &read));
    exchange_tick(fixture->exchange, ++fixture->now_ns);
    fixture_run(fixture);
    ck_assert_uint_eq(told(fixture, 0), 2);
    ck_assert_uint_eq(told(fixture, 0), 0);
    fixture_destroy(fixture);
}
END_TEST

/* With a word under way the group fails, its rank departs, or the job is closed. */
START_TEST(test_a_group_that_ends_with_a_word_under_way)
{
    struct fixture *fixture = three_nodes(0, 3, false);
    give(fixture, 0, 0);
    get(fixture, 3, 0);
    expect_word(fixture, 3, WIRE_HELD, 1);
    if (_i == 0)
        exchange_group_stop(fixture->exchange, FIXTURE_JOB, 0);
    else if (_i == 1)
        exchange_detach(fixture->exchange, &fixture->workers[0]);
    else
        exchange_job_close(fixture->exchange, FIXTURE_JOB);
    ck_assert_int_eq(say(fixture, 3, WIRE_STABLE, 1), 0);
    ck_assert_uint_eq(told(fixture, 0), 0);
    fixture_all_sent(fixture);
    fixture_run(fixture);
    ck_assert_uint_eq(fixture->send_count, 0);
    fixture_destroy(fixture);
}
END_TEST

/* --- sends ------------------------------------------------------------------------------------ */

#define SEND_SEQUENCE (WIRE_SEND_SEQUENCE | 7)

static struct arena_submission send_ask(const struct fixture *fixture, uint32_t rank, uint32_t from,
                                        uint32_t to)
{
    struct arena_submission it = fixture_ask(fixture, rank, 0, COUNT);
    it.kind = COLLECTIVE_SEND;
    it.sequence = SEND_SEQUENCE;
    it.block = 1 + from * 3 + to;
    it.request = 9;
    return it;
}

static struct wire_header send_header(uint32_t node, uint8_t type, uint32_t from, uint32_t to)
{
    struct wire_header header = fixture_header(node, type, SEND_SEQUENCE, 0, COUNT);
    header.ask.kind = COLLECTIVE_SEND;
    header.ask.block = 1 + from * 3 + to;
    return header;
}

static int confirm(struct fixture *fixture)
{
    int result = fixture_message(fixture, 1, send_header(1, WIRE_DELIVERED, 0, 1), NULL, 0);
    fixture_run(fixture);
    return result;
}

/* Done when both are so: the receiver's node has said that it has come (_i: before or after), and
 * nothing is sent from the rank's memory any more. */
START_TEST(test_a_send_is_done_when_it_has_come)
{
    struct fixture *fixture = three_nodes(0, 3, false);
    struct arena_submission it = send_ask(fixture, 0, 0, 1);
    fixture_expect_error(fixture, confirm(fixture), ERR_PROTOCOL, "not sent to it");
    ck_assert_int_eq(fixture_submit(fixture, 0, &it), 0);
    fixture_expect_error(fixture, confirm(fixture), ERR_PROTOCOL, "not sent to it");
    ck_assert_int_eq(fixture_message(fixture, 1, send_header(1, WIRE_CONTRIBUTION, 0, 1), NULL, 0),
                     0);
    ck_assert_uint_eq(fixture_sending(fixture, 0).type, WIRE_RESULT);
    struct wire_header wrong = send_header(2, WIRE_DELIVERED, 0, 1);
    fixture_expect_error(fixture, fixture_message(fixture, 2, wrong, NULL, 0), ERR_PROTOCOL,
                         "not sent to it");
    wrong = send_header(1, WIRE_DELIVERED, 0, 1);
    wrong.ask.count--;
    fixture_expect_error(fixture, fixture_message(fixture, 1, wrong, NULL, 0), ERR_PROTOCOL,
                         "not sent to it");
    for (int step = 0; step < 2; step++) {
        ck_assert(!fixture_completed(fixture, 0, 9));
        ck_assert(!exchange_idle(fixture->exchange));
        if (step == _i)
            ck_assert_int_eq(confirm(fixture), 0);
        else
            fixture_all_sent(fixture);
        if (step == 0 && step == _i)
            fixture_expect_error(fixture, confirm(fixture), ERR_PROTOCOL, "has come before");
    }
    ck_assert(fixture_completed(fixture, 0, 9));
    fixture_run(fixture);
    ck_assert(exchange_idle(fixture->exchange));
    ck_assert_uint_eq(fixture->send_count, 0);
    fixture_expect_error(fixture, confirm(fixture), ERR_PROTOCOL, "has come before");
    fixture_destroy(fixture);
}
END_TEST

/* The receiver's node says so when its rank has it; in a job without recovery nobody says it. */
START_TEST(test_a_receiver_says_that_it_has_come)
{
    struct fixture *fixture = three_nodes(1, 3, _i == 1);
    struct arena_submission it = send_ask(fixture, 1, 0, 1);
    float values[COUNT] = {5};
    ck_assert_int_eq(fixture_submit(fixture, 1, &it), 0);
    fixture_all_sent(fixture);
    ck_assert_int_eq(
        fixture_message(fixture, 0, send_header(0, WIRE_RESULT, 0, 1), values, sizeof(values)), 0);
    ck_assert_uint_eq(fixture->send_count, 0); /* it is here, and not yet in the rank's memory */
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 1, 9));
    ck_assert_uint_eq(fixture->send_count, _i == 1 ? 0 : 1);
    if (_i == 0) {
        expect_word(fixture, 0, WIRE_DELIVERED, SEND_SEQUENCE);
        /* The daemon may be killed in between: its rank's ring says so first. */
        ck_assert_uint_eq(fixture->sends[0]->connection, 1);
        ck_assert_uint_eq(fixture_sending(fixture, 0).ask.block, 2);
        ck_assert_uint_eq(fixture_sending(fixture, 0).ask.count, COUNT);
    }
    fixture_all_sent(fixture);
    fixture_run(fixture);
    ck_assert(exchange_idle(fixture->exchange));
    fixture_destroy(fixture);
}
END_TEST

/* A send that waits for that word, and never gets it, goes with its group. */
START_TEST(test_a_send_that_never_comes)
{
    struct fixture *fixture = three_nodes(0, 3, false);
    struct arena_submission it = send_ask(fixture, 0, 0, 1);
    ck_assert_int_eq(fixture_submit(fixture, 0, &it), 0);
    ck_assert_int_eq(fixture_message(fixture, 1, send_header(1, WIRE_CONTRIBUTION, 0, 1), NULL, 0),
                     0);
    fixture_all_sent(fixture);
    exchange_rank_left(fixture->exchange, FIXTURE_JOB, 0, 1, 0); /* the word may be on its way */
    fixture_run(fixture);
    ck_assert_uint_eq(fixture->event_count, 0);
    if (_i == 0)
        exchange_group_stop(fixture->exchange, FIXTURE_JOB, 0);
    else
        ck_assert_int_eq(confirm(fixture), 0);
    fixture_run(fixture);
    ck_assert(fixture_completed(fixture, 0, 9) == (_i == 1));
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_stable");
    TCase *tests = tcase_create("all");
    tcase_add_test(tests, test_a_node_says_what_it_holds);
    tcase_add_test(tests, test_blocks_are_held_together);
    tcase_add_loop_test(tests, test_one_node_alone, 0, 2);
    tcase_add_test(tests, test_the_root_answers_with_the_least);
    tcase_add_test(tests, test_a_root_without_ranks);
    tcase_add_test(tests, test_groups_have_other_roots);
    tcase_add_test(tests, test_without_recovery_nothing_is_said);
    tcase_add_test(tests, test_words_that_cannot_be);
    tcase_add_test(tests, test_words_to_the_root_that_cannot_be);
    tcase_add_test(tests, test_a_rank_that_does_not_read);
    tcase_add_loop_test(tests, test_a_group_that_ends_with_a_word_under_way, 0, 3);
    tcase_add_loop_test(tests, test_a_send_is_done_when_it_has_come, 0, 2);
    tcase_add_loop_test(tests, test_a_receiver_says_that_it_has_come, 0, 2);
    tcase_add_loop_test(tests, test_a_send_that_never_comes, 0, 2);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
