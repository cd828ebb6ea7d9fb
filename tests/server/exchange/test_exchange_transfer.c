/* Sends from rank to rank: what a node sends, gets and gives its ranks, in which order, how much at
 * once, and what is refused. */
#include <stdio.h>

#include "server/exchange/model/order.h"
#include "server/exchange/owner/slots.h"
#include "tests/lib/server/exchange_transfers.h"
#include "tests/lib/suite.h"

/* --- what goes where -------------------------------------------------------------------------- */

/* The receiver's node asks for it, and gets it, however early. */
START_TEST(a_receive)
{
    struct fixture *fixture = transfer_fixture(0);
    uint32_t count = _i == 0 ? 0 : FIXTURE_CHUNK / 2 + 1;
    transfer_receive(fixture, 2, 3, transfer_number(7, 0), count, 1);
    ck_assert_uint_eq(fixture->send_count, 1);
    struct wire_header sent = fixture_sending(fixture, 0);
    ck_assert_uint_eq(fixture->sends[0]->node, 1);
    ck_assert_int_eq(sent.type, WIRE_CONTRIBUTION);
    ck_assert_uint_eq(sent.payload_bytes, 0);
    ck_assert_uint_eq(sent.sequence, transfer_number(7, 0));
    ck_assert_uint_eq(sent.ask.block, pair(2, 3));
    fixture_all_sent(fixture);
    ck_assert(!exchange_idle(fixture->exchange));
    exchange_tick(fixture->exchange, 1000000); /* it may be early: nobody is late */
    ck_assert_uint_eq(fixture->event_count, 0);
    ck_assert_int_eq(transfer_answered(fixture, 1, 2, 3, transfer_number(7, 0), count, 0, 1), 0);
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 3, 1));
    transfer_expect(fixture, 3, 1, count, 201);
    ck_assert(exchange_idle(fixture->exchange));
    fixture_destroy(fixture);
}
END_TEST

/* A send waits to be asked; its memory is the rank's again when it has been sent. */
START_TEST(a_send)
{
    struct fixture *fixture = transfer_fixture(0);
    if (_i == 0)
        ck_assert_int_eq(transfer_asked(fixture, 1, 0, 4, transfer_number(0, 0), 50, 0), 0);
    ck_assert_uint_eq(fixture->send_count, 0);
    transfer_send(fixture, 0, 4, transfer_number(0, 0), 50, 2);
    if (_i == 1) {
        ck_assert_uint_eq(fixture->send_count, 0);
        exchange_tick(fixture->exchange, 1000000);
        ck_assert_uint_eq(fixture->event_count, 0);
        ck_assert_int_eq(transfer_asked(fixture, 1, 0, 4, transfer_number(0, 0), 50, 0), 0);
    }
    ck_assert_uint_eq(fixture->send_count, 1);
    struct wire_header sent = fixture_sending(fixture, 0);
    ck_assert_int_eq(sent.type, WIRE_RESULT);
    ck_assert_uint_eq(sent.payload_bytes, 50 * sizeof(float));
    ck_assert_ptr_eq(fixture->sends[0]->payload, fixture_data(fixture, 0, 2));
    ck_assert(!fixture_completed(fixture, 0, 2));
    fixture_all_sent(fixture);
    ck_assert(fixture_completed(fixture, 0, 2));
    ck_assert(exchange_idle(fixture->exchange));
    fixture_destroy(fixture);
}
END_TEST

START_TEST(between_ranks_of_a_node)
{
    struct fixture *fixture = transfer_fixture(0);
    uint32_t count = _i / 2 == 0 ? 0 : 3 * FIXTURE_CHUNK + 5;
    if (_i % 2)
        transfer_receive(fixture, 3, 0, transfer_number(1, 5), count, 1);
    transfer_send(fixture, 3, 0, transfer_number(1, 5), count, 2);
    if (_i % 2 == 0)
        transfer_receive(fixture, 3, 0, transfer_number(1, 5), count, 1);
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(fixture->send_count, 0);
    ck_assert(fixture_completed(fixture, 0, 1) && fixture_completed(fixture, 3, 2));
    transfer_expect(fixture, 0, 1, count, 302);
    fixture_destroy(fixture);
}
END_TEST

/* Numbers match, not the order in which the ranks come to them. */
START_TEST(many_in_any_order)
{
    struct fixture *fixture = transfer_fixture(0);
    for (uint32_t i = 0; i < 6; i++)
        transfer_send(fixture, 0, 3, transfer_number(i % 2, i / 2), 9, i);
    for (uint32_t i = 6; i-- > 0;)
        transfer_receive(fixture, 0, 3, transfer_number(i % 2, i / 2), 9, i);
    fixture_all_reduced(fixture);
    for (uint32_t i = 0; i < 6; i++) {
        ck_assert(fixture_completed(fixture, 0, i) && fixture_completed(fixture, 3, i));
        transfer_expect(fixture, 3, i, 9, (float)i);
    }
    fixture_destroy(fixture);
}
END_TEST

/* --- how much at once ------------------------------------------------------------------------- */

/* The first chunk is asked for alone, for the two ranks may not fit; then a window, and one more
 * for each that has come. */
START_TEST(a_receive_has_a_window)
{
    enum { CHUNKS = 7, COUNT = CHUNKS * FIXTURE_CHUNK };
    struct fixture *fixture = transfer_fixture(0);
    transfer_receive(fixture, 2, 0, transfer_number(0, 0), COUNT, 1);
    ck_assert_uint_eq(fixture->send_count, 1);
    fixture_all_sent(fixture);
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
        ck_assert_int_eq(
            transfer_answered(fixture, 1, 2, 0, transfer_number(0, 0), COUNT, chunk, 1), 0);
        ck_assert_uint_eq(fixture->send_count, chunk == 0 ? TRANSFER_WINDOW - 1 : 0);
        fixture_all_sent(fixture);
        fixture_all_reduced(fixture);
        ck_assert_uint_eq(fixture->send_count, chunk + TRANSFER_WINDOW < CHUNKS);
        if (fixture->send_count > 0)
            ck_assert_uint_eq(fixture_sending(fixture, 0).chunk, chunk + TRANSFER_WINDOW);
        fixture_all_sent(fixture);
    }
    ck_assert(fixture_completed(fixture, 0, 1));
    transfer_expect(fixture, 0, 1, COUNT, 201);
    fixture_destroy(fixture);
}
END_TEST

/* Receives whose senders do not come keep neither each other nor collectives from going on. */
START_TEST(early_receives_hold_nothing_up)
{
    struct fixture *fixture = transfer_fixture(0);
    for (uint32_t i = 0; i < 5; i++)
        transfer_receive(fixture, 2, 0, transfer_number(i, 0), 8 * FIXTURE_CHUNK, i);
    ck_assert_uint_eq(fixture->send_count, 5);
    fixture_all_sent(fixture);
    for (uint32_t rank = 0; rank <= 3; rank += 3)
        submit_all(fixture, rank, 0, COLLECTIVE_ALL_GATHER, 0);
    expect_send(fixture, 1, WIRE_CONTRIBUTION, 3, false, 0);
    fixture_all_sent(fixture);
    transfer_receive(fixture, 2, 0, transfer_number(9, 0), 5, 6);
    ck_assert_uint_eq(fixture->send_count, 1);
    fixture_all_sent(fixture);
    ck_assert_int_eq(transfer_answered(fixture, 1, 2, 0, transfer_number(9, 0), 5, 0, 6), 0);
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 0, 6));
    exchange_group_stop(fixture->exchange, FIXTURE_JOB, 0);
    fixture_destroy(fixture);
}
END_TEST

/* Asks hold no receive, for as long as they may wait. */
START_TEST(early_asks_hold_nothing)
{
    struct fixture *fixture = transfer_fixture(0);
    uint32_t posted = fixture_posted(fixture, 1);
    for (uint32_t i = 0; i < 40; i++)
        for (uint32_t chunk = 0; chunk < TRANSFER_WINDOW; chunk++)
            ck_assert_int_eq(transfer_asked(fixture, 1, 0, 2, transfer_number(0, i),
                                            9ull * FIXTURE_CHUNK, chunk),
                             0);
    ck_assert_uint_eq(fixture_posted(fixture, 1), posted);
    ck_assert(exchange_idle(fixture->exchange));
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.slots, 40 * TRANSFER_WINDOW);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(sends_of_a_rank_are_bounded)
{
    struct fixture *fixture = transfer_fixture(0);
    for (uint32_t i = 0; i < 1024; i++) {
        struct arena_submission it = transfer_ask(fixture, 0, 0, 2, transfer_number(0, i), 1, 1);
        EXPECT(fixture_submit(fixture, 0, &it) == 0);
    }
    struct arena_submission it = transfer_ask(fixture, 0, 0, 2, transfer_number(1, 0), 1, 1);
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL,
                         "more than 1024 sends and receives under way");
    /* one that is done makes room; the others of the node have their own */
    ck_assert_int_eq(transfer_asked(fixture, 1, 0, 2, transfer_number(0, 3), 1, 0), 0);
    fixture_all_sent(fixture);
    ck_assert_int_eq(fixture_submit(fixture, 0, &it), 0);
    transfer_send(fixture, 3, 2, transfer_number(0, 0), 1, 1);
    fixture_destroy(fixture);
}
END_TEST

/* The asks of a peer are bounded by what it can honestly have under way. */
START_TEST(asks_of_a_peer_are_bounded)
{
    struct fixture *fixture = transfer_fixture(0);
    uint32_t most = BLOCKS_RANKS * 1024 * TRANSFER_WINDOW, counter = 0;
    while (counter < most &&
           transfer_asked(fixture, 1, 0, 2, transfer_number(0, counter), 1, 0) == 0)
        counter++;
    ck_assert_uint_eq(counter, most);
    fixture_expect_error(fixture,
                         transfer_asked(fixture, 1, 0, 2, transfer_number(0, counter), 1, 0),
                         ERR_PROTOCOL, "more than 20480 chunks of sends asked for in group 0");
    fixture_destroy(fixture);
}
END_TEST

/* The memory for asks is the job's user's, and limited: at the limit the job fails, and the
 * connection, which is others' too, stays. The memory comes back as the asks are answered. */
START_TEST(asks_of_a_peer_count_as_memory)
{
    struct fixture_options options = {.nodes = 4,
                                      .ranks = BLOCKS_RANKS,
                                      .weights = {0, 0, 0, 1},
                                      .user = 1000,
                                      .kept_bytes = 20000};
    memcpy(options.rank_nodes, blocks_rank_nodes, sizeof(blocks_rank_nodes));
    struct fixture *fixture = fixture_create(&options);
    struct engine_job_status job;
    ck_assert_int_eq(transfer_asked(fixture, 1, 0, 2, transfer_number(0, 0), 1, 0), 0);
    exchange_job_totals(fixture->exchange, &job, 1);
    ck_assert_uint_gt(job.kept_bytes, 0);
    transfer_send(fixture, 0, 2, transfer_number(0, 0), 1, 1);
    fixture_all_sent(fixture);
    ck_assert(fixture_completed(fixture, 0, 1));
    exchange_job_totals(fixture->exchange, &job, 1);
    ck_assert_uint_eq(job.kept_bytes, 0);
    uint32_t counter = 1;
    while (counter < 1000 && fixture->event_count == 0)
        ck_assert_int_eq(transfer_asked(fixture, 1, 0, 2, transfer_number(0, counter++), 1, 0), 0);
    ck_assert_uint_gt(counter, 10);
    fixture_expect_failure(fixture, ERR_MEMORY,
                           "the requests of user 1000 on node a take more than 20000 bytes");
    fixture_run(fixture);
    exchange_job_totals(fixture->exchange, &job, 1);
    ck_assert_uint_eq(job.kept_bytes, 0);
    fixture_destroy(fixture);
}
END_TEST

/* --- nonsense --------------------------------------------------------------------------------- */

START_TEST(a_workers_nonsense_is_refused)
{
    struct fixture *fixture = transfer_fixture(0);
    const struct arena_submission good =
        transfer_ask(fixture, 0, 0, 2, transfer_number(3, 0), 2 * FIXTURE_CHUNK, 1);
    struct arena_submission it = good;
    it.sequence = 0;
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL,
                         "a send numbered 0 like a collective");
    it = good;
    it.block = pair(1, 2);
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL,
                         "a send between ranks 1 and 2 of group 0 by another one");
    it.block = 0;
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_INVALID,
                         "a send goes between two ranks");
    it.block = pair(0, 0);
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_INVALID,
                         "send has no block 1");
    it.block = pair(4, 4) + 1;
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_INVALID,
                         "send has no block 26");
    it = good;
    it.flags = ARENA_FLAG_STAGED;
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL, "is staged");
    it = good;
    it.dtype = DTYPE_COUNT;
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_INVALID, "data type 12");
    it = good;
    it.in_offset = 64;
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL,
                         "is not inside the arena");
    it = fixture_ask(fixture, 0, transfer_number(3, 0), 8); /* a sum with a send's number */
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL, "was expected");
    ck_assert(exchange_idle(fixture->exchange));
    ck_assert_int_eq(fixture_submit(fixture, 0, &good), 0);
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &good), ERR_PROTOCOL, "a send twice");
    it = good;
    it.type = ARENA_CHUNK; /* it is not staged */
    fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL,
                         "was not submitted as staged");
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_peers_nonsense_ends_its_connection)
{
    struct fixture *fixture = transfer_fixture(0);
    uint64_t first = transfer_number(3, 0);
    struct wire_header header = transfer_header(1, WIRE_CONTRIBUTION, 0, 2, first, 8, 0);
    header.ask.kind = COLLECTIVE_ALL_TO_ALL;
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, NULL, 0), ERR_PROTOCOL,
                         "all_to_all numbered 9223372049739677696");
    header = transfer_header(1, WIRE_CONTRIBUTION, 0, 2, 5, 8, 0);
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, NULL, 0), ERR_PROTOCOL,
                         "send numbered 5");
    header = transfer_header(1, WIRE_DISAGREE, 0, 2, first, 8, 0);
    uint8_t asks[WIRE_RANK_ASK_BYTES] = {0};
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, asks, sizeof(asks)),
                         ERR_PROTOCOL, "send numbered");
    /* between others, the wrong way, on this node alone, to itself, with data, a wrong chunk */
    fixture_expect_error(fixture, transfer_asked(fixture, 1, 0, 1, first, 8, 0), ERR_PROTOCOL,
                         "another node owns it");
    fixture_expect_error(fixture, transfer_asked(fixture, 1, 2, 0, first, 8, 0), ERR_PROTOCOL,
                         "another node owns it");
    fixture_expect_error(fixture, transfer_asked(fixture, 1, 0, 3, first, 8, 0), ERR_PROTOCOL,
                         "another node owns it");
    fixture_expect_error(fixture, transfer_asked(fixture, 1, 0, 0, first, 8, 0), ERR_PROTOCOL,
                         "does not exist");
    header = transfer_header(1, WIRE_CONTRIBUTION, 0, 2, first, 8, 0);
    float data[8] = {0};
    fixture_expect_error(fixture, fixture_message(fixture, 1, header, data, sizeof(data)),
                         ERR_PROTOCOL, "a contribution of 32 bytes");
    fixture_expect_error(fixture, transfer_asked(fixture, 1, 0, 2, first, 8, 1), ERR_PROTOCOL,
                         "chunk 1, which does not exist");
    ck_assert_int_eq(transfer_asked(fixture, 1, 0, 2, first, 8, 0), 0);
    fixture_expect_error(fixture, transfer_asked(fixture, 1, 0, 2, first, 8, 0), ERR_PROTOCOL,
                         "a second contribution");
    /* answers that nobody asked for, of the wrong size, from the wrong node, twice */
    fixture_expect_error(fixture, transfer_answered(fixture, 1, 2, 0, first, 8, 0, 1), ERR_PROTOCOL,
                         "which does not wait for one");
    transfer_receive(fixture, 2, 0, first, 8, 1);
    fixture_all_sent(fixture);
    fixture_expect_error(fixture, transfer_answered(fixture, 1, 2, 0, first, 7, 0, 1), ERR_PROTOCOL,
                         "a result of 28 bytes for a receive that it does not fit");
    fixture_expect_error(fixture, transfer_answered(fixture, 2, 2, 0, first, 8, 0, 1), ERR_PROTOCOL,
                         "which does not wait for one from it");
    ck_assert_int_eq(transfer_answered(fixture, 1, 2, 0, first, 8, 0, 1), 0);
    fixture_expect_error(fixture, transfer_answered(fixture, 1, 2, 0, first, 8, 0, 1), ERR_PROTOCOL,
                         "which does not wait for one");
    fixture_destroy(fixture);
}
END_TEST

/* --- ranks that leave, groups that fail ------------------------------------------------------- */

static void leave(struct fixture *fixture, uint32_t rank)
{
    exchange_rank_left(fixture->exchange, FIXTURE_JOB, 0, rank, 0);
    fixture_run(fixture);
}

/* The receiver is gone, before or after the send: for its own node as for another. */
START_TEST(a_receiver_that_leaves)
{
    struct fixture *fixture = transfer_fixture(0);
    uint32_t to = _i % 2 ? 3 : 2;
    if (_i / 2)
        leave(fixture, to);
    transfer_send(fixture, 0, to, transfer_number(0, 0), 8, 1);
    if (_i / 2 == 0)
        leave(fixture, to);
    char words[128];
    snprintf(words, sizeof(words),
             "rank %u has left job 'train' with a transfer between it and rank 0 of group 0", to);
    fixture_expect_failure(fixture, ERR_LOST, words);
    fixture_destroy(fixture);
}
END_TEST

/* The ranks of a group have places of their own: rank 4 has 0 here, and rank 0 has 4. */
START_TEST(a_receiver_that_leaves_a_group)
{
    struct fixture *fixture = transfer_fixture(0);
    const uint32_t ranks[BLOCKS_RANKS] = {4, 3, 2, 1, 0};
    struct exchange *exchange = fixture->exchange;
    ck_assert_int_eq(
        exchange_group_open(exchange, FIXTURE_JOB, 1, ranks, BLOCKS_RANKS, &fixture->error), 0);
    struct arena_submission it = transfer_ask(fixture, 3, 1, 0, transfer_number(0, 0), 8, 1);
    it.group = 1;
    ck_assert_int_eq(fixture_submit(fixture, 3, &it), 0);
    exchange_rank_left(exchange, FIXTURE_JOB, 1, 0, 0);
    exchange_rank_left(exchange, FIXTURE_JOB, 1, 1, 0);
    fixture_run(fixture);
    ck_assert_uint_eq(fixture->event_count, 0);
    exchange_rank_left(exchange, FIXTURE_JOB, 1, 4, 0);
    fixture_run(fixture);
    fixture_expect_failure(fixture, ERR_LOST,
                           "rank 4 has left job 'train' with a transfer between it and rank 3");
    fixture_destroy(fixture);
}
END_TEST

/* A sender that leaves with all said and done is not missed; one that has not sent is, by whoever
 * asks, before or after. */
START_TEST(a_sender_that_leaves)
{
    struct fixture *fixture = transfer_fixture(0);
    transfer_send(fixture, 0, 2, transfer_number(0, 0), 2 * FIXTURE_CHUNK, 1);
    transfer_send(fixture, 0, 2, transfer_number(0, 1), 0, 2);
    transfer_send(fixture, 0, 3, transfer_number(0, 0), 5, 3);
    leave(fixture, 0);
    transfer_receive(fixture, 0, 3, transfer_number(0, 0), 5, 1);
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 0, 3) && fixture_completed(fixture, 3, 1));
    transfer_expect(fixture, 3, 1, 5, 3);
    for (uint32_t chunk = 0; chunk < 2; chunk++)
        ck_assert_int_eq(
            transfer_asked(fixture, 1, 0, 2, transfer_number(0, 0), 2 * FIXTURE_CHUNK, chunk), 0);
    ck_assert_int_eq(transfer_asked(fixture, 1, 0, 2, transfer_number(0, 1), 0, 0), 0);
    ck_assert_uint_eq(fixture->send_count, 3);
    fixture_all_sent(fixture);
    ck_assert(fixture_completed(fixture, 0, 1) && fixture_completed(fixture, 0, 2));
    ck_assert_uint_eq(fixture->event_count, 0);
    ck_assert_int_eq(transfer_asked(fixture, 1, 0, 2, transfer_number(0, 2), 1, 0), 0);
    fixture_expect_failure(fixture, ERR_LOST,
                           "rank 0 has left job 'train' with a transfer "
                           "between it and rank 2 of group 0 not done");
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_sender_that_leaves_what_was_asked_for)
{
    struct fixture *fixture = transfer_fixture(0);
    if (_i == 0)
        ck_assert_int_eq(transfer_asked(fixture, 1, 0, 2, transfer_number(0, 0), 8, 0), 0);
    else
        transfer_receive(fixture, 0, 3, transfer_number(0, 0), 8, 1);
    leave(fixture, 1); /* who has no part in it */
    ck_assert_uint_eq(fixture->event_count, 0);
    leave(fixture, 0);
    fixture_expect_failure(fixture, ERR_LOST, "rank 0 has left job 'train'");
    fixture_destroy(fixture);
}
END_TEST

/* Asked for, half sent, half received, waiting: all is given back. */
START_TEST(a_group_that_fails_gives_back)
{
    struct fixture *fixture = transfer_fixture(0);
    transfer_send(fixture, 0, 2, transfer_number(0, 0), 8 * FIXTURE_CHUNK, 1);
    transfer_send(fixture, 0, 3, transfer_number(0, 0), 8 * FIXTURE_CHUNK, 2);
    transfer_receive(fixture, 0, 3, transfer_number(0, 0), 8 * FIXTURE_CHUNK, 2);
    transfer_receive(fixture, 2, 3, transfer_number(0, 0), 8 * FIXTURE_CHUNK, 3);
    transfer_receive(fixture, 3, 0, transfer_number(9, 9), 8 * FIXTURE_CHUNK, 3);
    for (uint32_t chunk = 0; chunk < TRANSFER_WINDOW; chunk++)
        ck_assert_int_eq(
            transfer_asked(fixture, 1, 0, 2, transfer_number(0, 0), 8ull * FIXTURE_CHUNK, chunk),
            0);
    ck_assert_int_eq(transfer_asked(fixture, 1, 0, 4, transfer_number(0, 0), 8, 0), 0);
    ck_assert_int_eq(
        transfer_answered(fixture, 1, 2, 3, transfer_number(0, 0), 8 * FIXTURE_CHUNK, 0, 3), 0);
    ck_assert_uint_gt(fixture->task_count, 0);
    ck_assert_uint_gt(fixture->send_count, 0);
    exchange_group_stop(fixture->exchange, FIXTURE_JOB, 0);
    /* what comes now is dropped */
    ck_assert_int_eq(
        transfer_answered(fixture, 1, 2, 3, transfer_number(0, 0), 8 * FIXTURE_CHUNK, 1, 3), 0);
    transfer_send(fixture, 0, 4, transfer_number(0, 0), 8, 4);
    fixture_all_sent(fixture);
    fixture_all_reduced(fixture);
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.slots, 0);
    ck_assert_uint_eq(fixture->workers[0].transfers, 0);
    ck_assert_uint_eq(fixture->workers[3].transfers, 0);
    ck_assert(!fixture_completed(fixture, 0, 1));
    fixture_destroy(fixture);
}
END_TEST

/* --- finding ---------------------------------------------------------------------------------- */

/* Sends that differ in one number alone, be it the tag, are not all looked for in one place. */
START_TEST(what_differs_in_one_number_spreads)
{
    enum { KEYS = 4 * SLOT_BUCKETS };
    uint32_t longest = 0, keys_in[SLOT_BUCKETS] = {0};
    for (uint32_t i = 0; i < KEYS; i++) {
        uint64_t sequence = _i == 0 ? transfer_number(i, 7) : _i == 1 ? transfer_number(3, i) : 1;
        uint32_t bucket = group_bucket(sequence, _i == 2 ? i : 1, _i == 3 ? i : 0, SLOT_BUCKETS);
        ck_assert_uint_lt(bucket, SLOT_BUCKETS);
        if (++keys_in[bucket] > longest)
            longest = keys_in[bucket];
    }
    ck_assert_uint_le(longest, 4 * KEYS / SLOT_BUCKETS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_transfer");
    TCase *way = tcase_create("way");
    tcase_add_loop_test(way, a_receive, 0, 2);
    tcase_add_loop_test(way, a_send, 0, 2);
    tcase_add_loop_test(way, between_ranks_of_a_node, 0, 4);
    tcase_add_test(way, many_in_any_order);
    suite_add_tcase(suite, way);
    TCase *amount = tcase_create("amount");
    tcase_add_test(amount, a_receive_has_a_window);
    tcase_add_test(amount, early_receives_hold_nothing_up);
    tcase_add_test(amount, early_asks_hold_nothing);
    tcase_add_test(amount, sends_of_a_rank_are_bounded);
    tcase_add_test(amount, asks_of_a_peer_are_bounded);
    tcase_add_test(amount, asks_of_a_peer_count_as_memory);
    suite_add_tcase(suite, amount);
    TCase *refusals = tcase_create("refusals");
    tcase_add_test(refusals, a_workers_nonsense_is_refused);
    tcase_add_test(refusals, a_peers_nonsense_ends_its_connection);
    suite_add_tcase(suite, refusals);
    TCase *ends = tcase_create("ends");
    tcase_add_loop_test(ends, a_receiver_that_leaves, 0, 4);
    tcase_add_test(ends, a_receiver_that_leaves_a_group);
    tcase_add_test(ends, a_sender_that_leaves);
    tcase_add_loop_test(ends, a_sender_that_leaves_what_was_asked_for, 0, 2);
    tcase_add_test(ends, a_group_that_fails_gives_back);
    tcase_add_loop_test(ends, what_differs_in_one_number_spreads, 0, 4);
    suite_add_tcase(suite, ends);
    return suite_main(suite);
}
