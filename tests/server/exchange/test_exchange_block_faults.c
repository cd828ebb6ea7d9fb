/* Blocks that are refused, on which ranks disagree, for which they are late, or which they leave
 * out. */
#include "tests/lib/server/exchange_fixture_blocks.h"
#include "tests/lib/suite.h"

/* --- nonsense from a worker ------------------------------------------------------------------- */

static void expect_refused(struct fixture *fixture, uint32_t rank, struct arena_submission it,
                           const char *words)
{
    fixture_expect_error(fixture, fixture_submit(fixture, rank, &it), ERR_PROTOCOL, words);
}

START_TEST(blocks_come_in_their_order)
{
    struct fixture *fixture = blocks_fixture(0);
    uint8_t kind = COLLECTIVE_ALL_TO_ALL;
    /* before the collective itself */
    expect_refused(
        fixture, 0, block_ask(fixture, 0, 0, kind, 0, 2),
        "block 2 of collective 0 of group 0, where block 0 of collective 0 was expected");
    submit_block(fixture, 0, 0, kind, 0, 0);
    uint32_t first = pair(0, 1);
    /* not its own, the next but one, the collective again, the next collective */
    expect_refused(fixture, 0, block_ask(fixture, 0, 0, kind, 0, pair(1, 2)), "was expected");
    expect_refused(fixture, 0, block_ask(fixture, 0, 0, kind, 0, pair(0, 2)), "was expected");
    expect_refused(fixture, 0, block_ask(fixture, 0, 0, kind, 0, 0), "where block 2 of");
    expect_refused(fixture, 0, block_ask(fixture, 0, 1, kind, 0, 0), "where block 2 of");
    struct arena_submission sum = fixture_ask(fixture, 0, 1, BLOCK_COUNT);
    expect_refused(fixture, 0, sum, "where block 2 of");
    /* its sequence number, kind */
    expect_refused(fixture, 0, block_ask(fixture, 0, 1, kind, 0, first),
                   "collective 1 of group 0, where 0 was expected");
    expect_refused(fixture, 0, block_ask(fixture, 0, 0, COLLECTIVE_ALL_GATHER, 0, first),
                   "block 2 of collective 0 of group 0 is of another collective");
    /* now right, then twice */
    submit_block(fixture, 0, 0, kind, 0, first);
    expect_refused(fixture, 0, block_ask(fixture, 0, 0, kind, 0, first), "was expected");
    /* a block after the last one */
    for (uint32_t block = next_block(kind, 0, 0, first); block > 0;
         block = next_block(kind, 0, 0, block))
        submit_block(fixture, 0, 0, kind, 0, block);
    expect_refused(fixture, 0, block_ask(fixture, 0, 0, kind, 0, first), "was expected");
    submit_block(fixture, 0, 1, COLLECTIVE_GATHER, 3, 0);
    /* its root */
    expect_refused(fixture, 0, block_ask(fixture, 0, 1, COLLECTIVE_GATHER, 1, 1),
                   "is of another collective");
    submit_block(fixture, 0, 1, COLLECTIVE_GATHER, 3, 1);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(blocks_that_do_not_exist_are_refused)
{
    struct fixture *fixture = blocks_fixture(0);
    static const struct {
        uint8_t kind;
        uint32_t block;
    } wrong[] = {{COLLECTIVE_ALL_REDUCE, 1},      {COLLECTIVE_BARRIER, 1},
                 {COLLECTIVE_ALL_GATHER, 6},      {COLLECTIVE_ALL_TO_ALL, 1},
                 {COLLECTIVE_ALL_TO_ALL, 26},     {COLLECTIVE_GATHER, 3 /* root's own */},
                 {COLLECTIVE_SCATTER, 0xffffffff}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct arena_submission it = block_ask(fixture, 0, 0, wrong[i].kind, 2, wrong[i].block);
        it.root = collective_has_root(it.kind) ? 2 : 0;
        it.count = it.kind == COLLECTIVE_BARRIER ? 0 : BLOCK_COUNT;
        int result = fixture_submit(fixture, 0, &it);
        ck_assert_msg(result == ERR_INVALID || result == ERR_PROTOCOL, "%zu: %d", i, result);
    }
    submit_block(fixture, 0, 0, COLLECTIVE_BARRIER + 1, 0, 0); /* nothing was left behind */
    fixture_destroy(fixture);
}
END_TEST

/* --- nonsense from a peer --------------------------------------------------------------------- */

START_TEST(a_peers_wrong_block_ends_its_connection)
{
    struct fixture *fixture = blocks_fixture(0);
    struct wire_header header =
        block_header(1, WIRE_CONTRIBUTION, 0, COLLECTIVE_ALL_TO_ALL, 0, pair(0, 1));
    /* no part of node 1's (from 0 to 1, which is on node 2) */
    fixture_expect_error(fixture, block_message(fixture, &header, 1, false, 0), ERR_PROTOCOL,
                         "another node owns it");
    header.ask.block = pair(2, 0); /* node 1 owns it */
    fixture_expect_error(fixture, block_message(fixture, &header, 1, true, 0), ERR_PROTOCOL,
                         "another node owns it");
    header.ask.block = pair(0, 3); /* both ranks here */
    fixture_expect_error(fixture, block_message(fixture, &header, 1, false, 0), ERR_PROTOCOL,
                         "another node owns it");
    header.ask.block = pair(0, 0);
    fixture_expect_error(fixture, block_message(fixture, &header, 1, false, 0), ERR_PROTOCOL,
                         "does not exist");
    header.ask.block = pair(0, 2);
    header.chunk = 1;
    fixture_expect_error(fixture, block_message(fixture, &header, 1, false, 0), ERR_PROTOCOL,
                         "chunk 1, which does not exist");
    header.chunk = 0;
    fixture_expect_error(fixture, block_message(fixture, &header, 1, true, 0), ERR_PROTOCOL,
                         "a contribution of 64 bytes");
    ck_assert_int_eq(block_message(fixture, &header, 1, false, 0), 0);
    fixture_expect_error(fixture, block_message(fixture, &header, 1, false, 0), ERR_PROTOCOL,
                         "a second contribution");
    /* a disagreement is about the collective, never a block */
    struct wire_header disagree = header;
    disagree.type = WIRE_DISAGREE;
    fixture_expect_error(fixture, block_message(fixture, &disagree, 1, true, 0), ERR_PROTOCOL,
                         "makes no sense");
    /* node 3 has no rank */
    header.token = fixture_receive_token(3);
    fixture_expect_error(fixture, block_message(fixture, &header, 3, false, 0), ERR_PROTOCOL,
                         "in which it has no part");
    fixture_destroy(fixture);
}
END_TEST

/* --- disagreement ----------------------------------------------------------------------------- */

START_TEST(local_ranks_that_disagree_on_a_block)
{
    struct fixture *fixture = blocks_fixture(0);
    submit_until(fixture, 0, 0, COLLECTIVE_REDUCE_SCATTER, 0, 3);
    submit_until(fixture, 3, 0, COLLECTIVE_REDUCE_SCATTER, 0, 2);
    ck_assert_uint_eq(fixture->event_count, 0);
    struct arena_submission it = block_ask(fixture, 3, 0, COLLECTIVE_REDUCE_SCATTER, 0, 2);
    it.count = BLOCK_COUNT + 1;
    ck_assert_int_eq(fixture_submit(fixture, 3, &it), 0);
    fixture_expect_failure(
        fixture, ERR_MISMATCH,
        "collective 0 of group 0 differs between ranks: rank 0 asked for "
        "reduce_scatter sum float count 16 for the part of rank 1 of the group; rank 3 asked for "
        "reduce_scatter sum float count 17 for the part of rank 1");
    fixture_destroy(fixture);
}
END_TEST

/* Both ranks of the pair are here, though the group is on more nodes. */
START_TEST(a_pair_on_one_node_that_disagrees)
{
    struct fixture *fixture = blocks_fixture(0);
    submit_until(fixture, 3, 0, COLLECTIVE_GATHER, 3, 1);
    submit_until(fixture, 0, 0, COLLECTIVE_GATHER, 3, 1);
    submit_block(fixture, 0, 0, COLLECTIVE_GATHER, 3, 1);
    struct arena_submission it = block_ask(fixture, 3, 0, COLLECTIVE_GATHER, 3, 1);
    it.count = 0;
    ck_assert_int_eq(fixture_submit(fixture, 3, &it), 0);
    fixture_expect_failure(fixture, ERR_MISMATCH, "rank 3 asked for gather float count 0");
    fixture_destroy(fixture);
}
END_TEST

/* Until the server has heard all nodes the blocks of the one collective go on; those of the other,
 * which have the same numbers, are not mixed up with them. */
START_TEST(local_ranks_that_disagree_on_the_kind)
{
    struct fixture *fixture = blocks_fixture(0);
    submit_block(fixture, 0, 0, COLLECTIVE_GATHER, 1, 0);
    submit_block(fixture, 0, 0, COLLECTIVE_GATHER, 1, 1);
    submit_block(fixture, 3, 0, COLLECTIVE_ALL_GATHER, 0, 0);
    uint32_t told = find_send(fixture, 3, WIRE_DISAGREE, 0);
    ck_assert_uint_eq(fixture->sends[told]->payload_bytes, 2ull * WIRE_RANK_ASK_BYTES);
    fixture_sent(fixture, told);
    struct arena_submission it = block_ask(fixture, 3, 0, COLLECTIVE_ALL_GATHER, 0, 1);
    it.flags = ARENA_FLAG_STAGED;
    ck_assert_int_eq(fixture_submit(fixture, 3, &it), 0);
    /* its chunk comes back at once, or with the group */
    it.type = ARENA_CHUNK;
    it.chunk = 0;
    ck_assert_int_eq(fixture_submit(fixture, 3, &it), 0);
    ck_assert_uint_eq(fixture->completion_count, 1);
    ck_assert_uint_eq(fixture->completions[0].rank, 3);
    ck_assert_int_eq(fixture->completions[0].it.type, ARENA_CHUNK_DONE);
    /* rank 1, on node 2, has gathered with rank 0: that is complete */
    contribute_block(fixture, 2, COLLECTIVE_GATHER, 1, 1, false, 0);
    fixture_all_sent(fixture);
    ck_assert(fixture_completed(fixture, 0, 1));
    ck_assert(!fixture_completed(fixture, 3, 1));
    submit_block(fixture, 3, 0, COLLECTIVE_ALL_GATHER, 0, 2);
    ck_assert(!sends_block(fixture, 2)); /* it makes no difference any more */
    ck_assert_uint_eq(fixture->event_count, 0);
    exchange_group_stop(fixture->exchange, FIXTURE_JOB, 0);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(nodes_that_disagree_on_a_block)
{
    struct fixture *fixture = blocks_fixture(0);
    submit_until(fixture, 0, 0, COLLECTIVE_ALL_TO_ALL, 0, pair(0, 1) + 1);
    struct wire_header header =
        block_header(2, WIRE_CONTRIBUTION, 0, COLLECTIVE_ALL_TO_ALL, 0, pair(0, 1));
    header.ask.count = 0;
    ck_assert_int_eq(block_message(fixture, &header, 2, false, 0), 0);
    fixture_expect_failure(fixture, ERR_MISMATCH,
                           "rank 0 asked for all_to_all float count 16 from rank 0 to rank 1 of "
                           "the group; rank 1 asked for all_to_all float count 0");
    for (uint32_t node = 1; node < 3; node++) {
        struct wire_header sent =
            fixture_sending(fixture, find_send(fixture, node, WIRE_ERROR, pair(0, 1)));
        ck_assert_int_eq(sent.status, ERR_MISMATCH);
    }
    fixture_destroy(fixture);
}
END_TEST

/* Other collectives have other blocks of the same number, with other nodes in them. The third node
 * comes before, while, and after the block of the two others is copied. */
START_TEST(nodes_that_disagree_on_the_kind)
{
    struct fixture *fixture = blocks_fixture(0);
    struct wire_header gather = block_header(2, WIRE_CONTRIBUTION, 0, COLLECTIVE_ALL_GATHER, 0, 4);
    /* gather from rank 3 to rank 1: nodes 0 and 2; all_gather of rank 3: nodes 0, 1 and 2 */
    struct wire_header other = block_header(1, WIRE_CONTRIBUTION, 0, COLLECTIVE_ALL_GATHER, 0, 4);
    gather.ask.kind = COLLECTIVE_GATHER;
    gather.ask.root = 1;
    if (_i == 0)
        ck_assert_int_eq(block_message(fixture, &other, 1, false, 0), 0);
    for (uint32_t rank = 0; rank <= 3; rank += 3)
        submit_all(fixture, rank, 0, COLLECTIVE_GATHER, 1);
    ck_assert_int_eq(block_message(fixture, &gather, 2, false, 0), 0);
    ck_assert_uint_eq(fixture->event_count, _i == 0);
    if (_i == 1)
        ck_assert_int_eq(block_message(fixture, &other, 1, false, 0), 0);
    if (_i == 0) {
        fixture_expect_failure(fixture, ERR_MISMATCH, "all_gather float count 16");
    } else {
        /* answered: the other's slot waits until the collective itself fails the group */
        expect_send(fixture, 2, WIRE_RESULT, 4, true, value_of(3, 4));
        fixture_all_sent(fixture);
        ck_assert(fixture_completed(fixture, 3, 4));
        exchange_group_stop(fixture->exchange, FIXTURE_JOB, 0);
    }
    fixture_destroy(fixture);
}
END_TEST

/* --- late and gone ---------------------------------------------------------------------------- */

START_TEST(late_reports_name_only_nodes_that_take_part)
{
    struct fixture *fixture = blocks_fixture(0);
    submit_until(fixture, 0, 0, COLLECTIVE_ALL_TO_ALL, 0, pair(0, 1) + 1);
    exchange_tick(fixture->exchange, 999);
    ck_assert_uint_eq(fixture->event_count, 0);
    exchange_tick(fixture->exchange, 1000);
    struct engine_event *event = fixture_event(fixture, ENGINE_LATE);
    ck_assert_uint_eq(event->sequence, 0);
    ck_assert_uint_eq(event->rank_count, 1);
    ck_assert_uint_eq(event->ranks[0], 3);
    ck_assert_uint_eq(event->node_count, 1);
    ck_assert_uint_eq(event->nodes[0], 2); /* of rank 1; not node 1 */
    engine_event_free(event);
    exchange_tick(fixture->exchange, 5000);
    ck_assert_uint_eq(fixture->event_count, 0); /* once */
    fixture_destroy(fixture);
}
END_TEST

/* A rank that does not take part in a block is not missed for it. */
START_TEST(a_block_misses_only_the_ranks_that_take_part)
{
    struct fixture *fixture = blocks_fixture(0);
    for (uint32_t rank = 0; rank <= 3; rank += 3)
        submit_block(fixture, rank, 0, COLLECTIVE_SCATTER, 1, 0);
    submit_block(fixture, 0, 0, COLLECTIVE_SCATTER, 1, 1);
    expect_send(fixture, 2, WIRE_CONTRIBUTION, 1, false, 0); /* without rank 3 */
    ck_assert(!sends_block(fixture, 4));
    submit_block(fixture, 3, 0, COLLECTIVE_SCATTER, 1, 4);
    expect_send(fixture, 2, WIRE_CONTRIBUTION, 4, false, 0);
    exchange_tick(fixture->exchange, 5000);
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_destroy(fixture);
}
END_TEST

/* The count of a rank's collectives leaves out one of which it has not submitted all blocks. */
START_TEST(a_rank_that_goes_before_its_last_block)
{
    struct fixture *fixture = blocks_fixture(0);
    for (uint32_t rank = 0; rank <= 3; rank += 3) {
        submit_all(fixture, rank, 0, COLLECTIVE_ALL_GATHER, 0);
        submit_until(fixture, rank, 1, COLLECTIVE_ALL_GATHER, 0, rank == 0 ? 5 : 6);
        exchange_detach(fixture->exchange, &fixture->workers[rank]);
        struct engine_event *event = fixture_event(fixture, ENGINE_WORKER_DETACHED);
        ck_assert_uint_eq(event->position_count, 1);
        ck_assert_uint_eq(event->positions[0].group, 0);
        ck_assert_uint_eq(event->positions[0].sequences, rank == 0 ? 1 : 2);
        engine_event_free(event);
    }
    exchange_rank_left(fixture->exchange, FIXTURE_JOB, 0, 3, 2);
    fixture_run(fixture);
    ck_assert_uint_eq(fixture->event_count, 0);
    exchange_rank_left(fixture->exchange, FIXTURE_JOB, 0, 0, 1);
    fixture_run(fixture);
    fixture_expect_failure(fixture, ERR_LOST, "rank 0 has left job 'train' after 1 collectives");
    fixture_destroy(fixture);
}
END_TEST

/* Blocks that are gathered, copied, sent and answered when the group stops. */
START_TEST(a_failed_group_gives_its_blocks_back)
{
    static const uint32_t own[] = {1, 3, 2}; /* the block of each node's first rank */
    struct fixture *fixture = blocks_fixture((uint32_t)_i);
    for (uint32_t rank = 0; rank < BLOCKS_RANKS; rank++) {
        if (blocks_rank_nodes[rank] == fixture->options.self)
            submit_all(fixture, rank, 0, COLLECTIVE_ALL_GATHER, 0);
    }
    for (uint32_t node = 0; node < 3; node++) {
        if (node != fixture->options.self)
            contribute_block(fixture, node, COLLECTIVE_ALL_GATHER, 0, own[_i], false, 0);
    }
    ck_assert_uint_gt(fixture->send_count, 0);
    exchange_group_stop(fixture->exchange, FIXTURE_JOB, 0);
    fixture_all_sent(fixture);
    fixture_all_reduced(fixture);
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.slots, 0);
    ck_assert(exchange_idle(fixture->exchange));
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_block_faults");
    TCase *refusals = tcase_create("refusals");
    tcase_add_test(refusals, blocks_come_in_their_order);
    tcase_add_test(refusals, blocks_that_do_not_exist_are_refused);
    tcase_add_test(refusals, a_peers_wrong_block_ends_its_connection);
    tcase_add_test(refusals, local_ranks_that_disagree_on_a_block);
    tcase_add_test(refusals, a_pair_on_one_node_that_disagrees);
    tcase_add_test(refusals, local_ranks_that_disagree_on_the_kind);
    tcase_add_test(refusals, nodes_that_disagree_on_a_block);
    tcase_add_loop_test(refusals, nodes_that_disagree_on_the_kind, 0, 2);
    suite_add_tcase(suite, refusals);
    TCase *faults = tcase_create("faults");
    tcase_add_test(faults, late_reports_name_only_nodes_that_take_part);
    tcase_add_test(faults, a_block_misses_only_the_ranks_that_take_part);
    tcase_add_test(faults, a_rank_that_goes_before_its_last_block);
    tcase_add_loop_test(faults, a_failed_group_gives_its_blocks_back, 0, 3);
    suite_add_tcase(suite, faults);
    return suite_main(suite);
}
