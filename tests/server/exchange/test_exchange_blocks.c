/* Collectives that travel in blocks: what each kind of node sends, gets and gives its ranks, and
 * how much at once. */
#include "tests/lib/server/exchange_fixture_blocks.h"
#include "tests/lib/suite.h"

/* --- what a node sends and gets --------------------------------------------------------------- */

/* A block of every kind. */
struct part {
    uint8_t kind;
    uint32_t root;
    uint32_t from, to; /* ranks; BLOCKS_RANKS: all */
    uint32_t block;
};

static const struct part parts[] = {
    {COLLECTIVE_ALL_GATHER, 0, 0, BLOCKS_RANKS, 1},
    {COLLECTIVE_ALL_GATHER, 0, 3, BLOCKS_RANKS, 4},
    {COLLECTIVE_ALL_GATHER, 0, 1, BLOCKS_RANKS, 2},
    {COLLECTIVE_REDUCE_SCATTER, 0, BLOCKS_RANKS, 3, 4},
    {COLLECTIVE_REDUCE_SCATTER, 0, BLOCKS_RANKS, 2, 3},
    {COLLECTIVE_GATHER, 3, 1, 3, 2},
    {COLLECTIVE_GATHER, 2, 3, 2, 4},
    {COLLECTIVE_SCATTER, 0, 0, 4, 5},
    {COLLECTIVE_SCATTER, 1, 1, 3, 4},
    {COLLECTIVE_ALL_TO_ALL, 0, 3, 4, 1 + 3 * BLOCKS_RANKS + 4},
    {COLLECTIVE_ALL_TO_ALL, 0, 4, 3, 1 + 4 * BLOCKS_RANKS + 3},
};
#define PARTS (sizeof(parts) / sizeof(parts[0]))

static bool sends(const struct part *part, uint32_t rank)
{
    return part->from == BLOCKS_RANKS || part->from == rank;
}

static bool receives(const struct part *part, uint32_t rank)
{
    return part->to == rank || (part->to == BLOCKS_RANKS && part->from != rank);
}

static bool node_any(const struct part *part, uint32_t node,
                     bool (*does)(const struct part *part, uint32_t rank))
{
    bool any = false;
    for (uint32_t rank = 0; rank < BLOCKS_RANKS; rank++)
        any |= blocks_rank_nodes[rank] == node && does(part, rank);
    return any;
}

static uint32_t node_of_owner(const struct part *part)
{
    return blocks_rank_nodes[part->kind == COLLECTIVE_REDUCE_SCATTER ? part->to : part->from];
}

/* Return what the ranks on a node give together, as the owner hears it. */
static float node_value(const struct part *part, uint32_t node)
{
    float sum = 0;
    for (uint32_t rank = 0; rank < BLOCKS_RANKS; rank++) {
        if (blocks_rank_nodes[rank] == node && sends(part, rank))
            sum += value_of(rank, part->block);
    }
    return sum;
}

static float result_value(const struct part *part)
{
    float sum = 0;
    for (uint32_t node = 0; node < 3; node++)
        sum += node_value(part, node);
    return sum;
}

/* The ranks of the fixture's node do their part up to this block; what is of other blocks waits. */
static void do_ranks(struct fixture *fixture, const struct part *part)
{
    for (uint32_t rank = 0; rank < BLOCKS_RANKS; rank++) {
        if (blocks_rank_nodes[rank] == fixture->options.self)
            submit_until(fixture, rank, 0, part->kind, part->root, part->block + 1);
    }
}

static void expect_results(struct fixture *fixture, const struct part *part)
{
    for (uint32_t rank = 0; rank < BLOCKS_RANKS; rank++) {
        if (blocks_rank_nodes[rank] != fixture->options.self)
            continue;
        if (receives(part, rank))
            expect_result(fixture, rank, part->block, result_value(part));
        else if (sends(part, rank))
            expect_result(fixture, rank, part->block, 0); /* told, not written to */
    }
}

/* Play a node without the block: contribute what its ranks give, and wait for the answer. */
static void play_member(struct fixture *fixture, const struct part *part)
{
    uint32_t self = fixture->options.self, owner = node_of_owner(part);
    do_ranks(fixture, part);
    fixture_all_reduced(fixture);
    expect_send(fixture, owner, WIRE_CONTRIBUTION, part->block, node_any(part, self, sends),
                node_value(part, self));
    fixture_sent(fixture, find_send(fixture, owner, WIRE_CONTRIBUTION, part->block));
    bool gets = node_any(part, self, receives);
    struct wire_header header =
        block_header(owner, WIRE_RESULT, 0, part->kind, part->root, part->block);
    /* the wrong size, another block, another node's */
    fixture_expect_error(fixture, block_message(fixture, &header, owner, !gets, 1), ERR_PROTOCOL,
                         "a result of");
    uint32_t stranger = owner == 2 ? 3 : 2;
    struct wire_header strange = header;
    strange.token = fixture_receive_token(stranger);
    if (stranger != self)
        fixture_expect_error(fixture, block_message(fixture, &strange, stranger, gets, 1),
                             ERR_PROTOCOL, "which does not wait for one from it");
    ck_assert_int_eq(block_message(fixture, &header, owner, gets, result_value(part)), 0);
    fixture_all_reduced(fixture);
    expect_results(fixture, part);
    fixture_expect_error(fixture, block_message(fixture, &header, owner, gets, 1), ERR_PROTOCOL,
                         "which does not wait for one");
}

/* Play the owner: hear each node that takes part once, and answer each. */
static void play_owner(struct fixture *fixture, const struct part *part)
{
    uint32_t self = fixture->options.self;
    do_ranks(fixture, part);
    for (uint32_t node = 0; node < 3; node++) {
        bool gives = node_any(part, node, sends);
        if (node == self)
            continue;
        struct wire_header header =
            block_header(node, WIRE_CONTRIBUTION, 0, part->kind, part->root, part->block);
        if (!gives && !node_any(part, node, receives)) {
            fixture_expect_error(fixture, block_message(fixture, &header, node, false, 0),
                                 ERR_PROTOCOL, "a contribution of");
            continue;
        }
        fixture_expect_error(fixture, block_message(fixture, &header, node, !gives, 0),
                             ERR_PROTOCOL, "a contribution of");
        contribute_block(fixture, node, part->kind, part->root, part->block, gives,
                         node_value(part, node));
    }
    fixture_all_reduced(fixture);
    for (uint32_t node = 0; node < 3; node++) {
        if (node == self || (!node_any(part, node, sends) && !node_any(part, node, receives)))
            continue;
        expect_send(fixture, node, WIRE_RESULT, part->block, node_any(part, node, receives),
                    result_value(part));
        fixture_sent(fixture, find_send(fixture, node, WIRE_RESULT, part->block));
    }
    expect_results(fixture, part);
}

/* Every kind of block, as each of the nodes. */
START_TEST(what_a_node_sends_and_gets)
{
    const struct part *part = &parts[_i / 3];
    uint32_t self = (uint32_t)_i % 3;
    if (!node_any(part, self, sends) && !node_any(part, self, receives))
        return; /* has nothing to do with it */
    struct fixture *fixture = blocks_fixture(self);
    ck_assert_uint_eq(fixture_posted(fixture, 3), 34); /* results, an error, a sign of life */
    if (node_of_owner(part) == self)
        play_owner(fixture, part);
    else
        play_member(fixture, part);
    fixture_destroy(fixture);
}
END_TEST

/* Sender and receiver on one node of a group over several: one hop, no message. */
START_TEST(ranks_of_a_node_give_to_each_other_at_once)
{
    static const struct part at_home[] = {{COLLECTIVE_ALL_TO_ALL, 0, 0, 3, 1 + 3},
                                          {COLLECTIVE_ALL_TO_ALL, 0, 3, 0, 1 + 15},
                                          {COLLECTIVE_GATHER, 3, 0, 3, 1},
                                          {COLLECTIVE_SCATTER, 0, 0, 3, 4}};
    const struct part *part = &at_home[_i];
    struct fixture *fixture = blocks_fixture(0);
    do_ranks(fixture, part);
    ck_assert(!sends_block(fixture, part->block));
    fixture_all_reduced(fixture);
    ck_assert(!sends_block(fixture, part->block));
    expect_results(fixture, part);
    fixture_destroy(fixture);
}
END_TEST

/* A block with no elements has its messages, and neither copies nor sums. */
START_TEST(an_empty_block_is_told_all_the_same)
{
    struct fixture *fixture = blocks_fixture(0);
    for (uint32_t rank = 0; rank <= 3; rank += 3) {
        submit_block(fixture, rank, 0, COLLECTIVE_REDUCE_SCATTER, 0, 0);
        for (uint32_t block = 1; block <= 3; block++) {
            struct arena_submission it =
                block_ask(fixture, rank, 0, COLLECTIVE_REDUCE_SCATTER, 0, block);
            it.count = 0;
            ck_assert_int_eq(fixture_submit(fixture, rank, &it), 0);
        }
    }
    ck_assert_uint_eq(fixture->task_count, 0);
    for (uint32_t node = 1; node < 3; node++) {
        struct wire_header header =
            block_header(node, WIRE_CONTRIBUTION, 0, COLLECTIVE_REDUCE_SCATTER, 0, 1);
        header.ask.count = 0;
        ck_assert_int_eq(block_message(fixture, &header, node, false, 0), 0);
    }
    for (uint32_t node = 1; node < 3; node++)
        expect_send(fixture, node, WIRE_RESULT, 1, false, 0);
    expect_send(fixture, 2, WIRE_CONTRIBUTION, 2, false, 0);
    expect_send(fixture, 1, WIRE_CONTRIBUTION, 3, false, 0);
    ck_assert(fixture_completed(fixture, 0, 1) && fixture_completed(fixture, 3, 1));
    fixture_destroy(fixture);
}
END_TEST

/* Block 0 has no data, and goes where the collective's number says. */
START_TEST(the_collective_itself_meets_at_the_server)
{
    struct fixture *fixture = blocks_fixture(0);
    submit_all(fixture, 0, 0, COLLECTIVE_ALL_GATHER, 0);
    ck_assert(!sends_block(fixture, 0)); /* rank 3 has not asked */
    submit_block(fixture, 3, 0, COLLECTIVE_ALL_GATHER, 0, 0);
    expect_send(fixture, 3, WIRE_CONTRIBUTION, 0, false, 0);
    fixture_all_sent(fixture);
    struct wire_header header = block_header(3, WIRE_RESULT, 0, COLLECTIVE_ALL_GATHER, 0, 0);
    ck_assert_int_eq(block_message(fixture, &header, 3, false, 0), 0);
    ck_assert(fixture_completed(fixture, 0, 0) && fixture_completed(fixture, 3, 0));
    fixture_destroy(fixture);
}
END_TEST

/* A source's arena is read until all receivers have been sent to. */
START_TEST(a_block_waits_for_all_sends_from_its_arena)
{
    struct fixture *fixture = blocks_fixture(2);
    submit_until(fixture, 1, 0, COLLECTIVE_ALL_GATHER, 0, 3);
    contribute_block(fixture, 0, COLLECTIVE_ALL_GATHER, 0, 2, false, 0);
    contribute_block(fixture, 1, COLLECTIVE_ALL_GATHER, 0, 2, false, 0);
    ck_assert_uint_eq(fixture->task_count, 0); /* nobody else is here */
    uint32_t first = find_send(fixture, 0, WIRE_RESULT, 2);
    ck_assert_ptr_eq(fixture->sends[first]->payload, block_data(fixture, 1, 2, false));
    ck_assert_ptr_eq(fixture->sends[first]->worker, &fixture->workers[1]);
    fixture_sent(fixture, first);
    ck_assert(!fixture_completed(fixture, 1, 2));
    fixture_sent(fixture, find_send(fixture, 1, WIRE_RESULT, 2));
    ck_assert(fixture_completed(fixture, 1, 2));
    fixture_destroy(fixture);
}
END_TEST

/* A block of several chunks, which are where the arena says. */
static void submit_large(struct fixture *fixture, uint32_t rank, uint8_t kind, uint32_t block,
                         uint64_t count)
{
    struct arena_submission it = block_ask(fixture, rank, 0, kind, 0, block);
    it.in_offset = fixture_offset(fixture, rank, 0);
    it.out_offset = fixture_offset(fixture, rank, 1);
    it.count = block == 0 ? 0 : count;
    EXPECT_MSG(fixture_submit(fixture, rank, &it) == 0, "%s", fixture->error.text);
}

static uint32_t sends_to(const struct fixture *fixture, uint32_t node)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < fixture->send_count; i++)
        count += fixture->sends[i]->node == node;
    return count;
}

/* A rank on each of three nodes, of which node 1 is the server. window 0: the fixture's. */
static struct fixture *one_on_each(uint32_t window)
{
    struct fixture_options options = {
        .nodes = 3, .ranks = 3, .rank_nodes = {0, 1, 2}, .weights = {0, 1}, .window = window};
    return fixture_create(&options);
}

/* A node asks for a chunk of rank 0's part, which is of so many chunks. */
static int ask_for(struct fixture *fixture, uint32_t node, uint32_t chunk, uint32_t chunks)
{
    struct wire_header header =
        block_header(node, WIRE_CONTRIBUTION, 0, COLLECTIVE_ALL_GATHER, 0, 1);
    header.ask.count = (uint64_t)chunks * FIXTURE_CHUNK;
    header.chunk = chunk;
    return block_message(fixture, &header, node, false, 0);
}

/* Nodes do not wait for each other where one rank's data is here, but in chunk 0, in which one that
 * disagrees about the part would be found. */
START_TEST(who_has_asked_is_answered_at_once)
{
    struct fixture *fixture = one_on_each(0);
    ck_assert_int_eq(ask_for(fixture, 1, 1, 2), 0); /* one node asks before the data is here */
    submit_large(fixture, 0, COLLECTIVE_ALL_GATHER, 0, 0);
    fixture_all_sent(fixture); /* the collective itself */
    submit_large(fixture, 0, COLLECTIVE_ALL_GATHER, 1, 2ull * FIXTURE_CHUNK);
    ck_assert_uint_eq(fixture->send_count, 1);
    struct wire_header sent = fixture_sending(fixture, 0);
    ck_assert(sent.type == WIRE_RESULT && sent.chunk == 1 && sends_to(fixture, 1) == 1);
    ck_assert_uint_eq(sent.payload_bytes, FIXTURE_CHUNK * sizeof(float));
    /* A node is heard once all the same, also when its answer is on its way, or gone. */
    fixture_expect_error(fixture, ask_for(fixture, 1, 1, 2), ERR_PROTOCOL, "a second contribution");
    fixture_all_sent(fixture);

    ck_assert_int_eq(ask_for(fixture, 2, 0, 2), 0); /* chunk 0 is for both, or for none */
    ck_assert_uint_eq(fixture->send_count, 0);
    ck_assert_int_eq(ask_for(fixture, 1, 0, 2), 0);
    ck_assert_uint_eq(fixture->send_count, 2);
    fixture_all_sent(fixture);
    ck_assert(!fixture_completed(fixture, 0, 1));

    ck_assert_int_eq(ask_for(fixture, 2, 1, 2), 0);
    ck_assert(fixture->send_count == 1 && sends_to(fixture, 2) == 1);
    ck_assert(!fixture_completed(fixture, 0, 1)); /* its memory is being sent from */
    fixture_all_sent(fixture);
    ck_assert(fixture_completed(fixture, 0, 1));
    fixture_destroy(fixture);
}
END_TEST

/* An answer gives its place in the window back, whoever else has not asked. */
START_TEST(who_is_answered_may_ask_on)
{
    struct fixture *fixture = one_on_each(3);
    submit_large(fixture, 0, COLLECTIVE_ALL_GATHER, 0, 0);
    fixture_all_sent(fixture);
    struct wire_header header = block_header(1, WIRE_RESULT, 0, COLLECTIVE_ALL_GATHER, 0, 0);
    header.ask.count = 0;
    ck_assert_int_eq(block_message(fixture, &header, 1, false, 0), 0);
    submit_large(fixture, 0, COLLECTIVE_ALL_GATHER, 1, 5ull * FIXTURE_CHUNK);
    for (uint32_t chunk = 0; chunk < 5; chunk++)
        EXPECT_MSG(ask_for(fixture, 1, chunk, 5) == 0, "%s", fixture->error.text);
    ck_assert_uint_eq(sends_to(fixture, 1), 2); /* of chunks 1 and 2; 3 and 4 are not here yet */
    fixture_all_sent(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* An answer that a node was given early does not change what is said of another node that asks for
 * something else. */
START_TEST(who_disagrees_after_an_answer_is_named)
{
    struct fixture *fixture = one_on_each(0);
    submit_large(fixture, 0, COLLECTIVE_ALL_GATHER, 0, 0);
    fixture_all_sent(fixture);
    submit_large(fixture, 0, COLLECTIVE_ALL_GATHER, 1, 2ull * FIXTURE_CHUNK);
    ck_assert_int_eq(ask_for(fixture, 1, 1, 2), 0);
    ck_assert_uint_eq(fixture->send_count, 1);
    ck_assert_int_eq(ask_for(fixture, 2, 1, 3), 0);
    ck_assert(fixture->send_count == 3 && sends_to(fixture, 1) == 2 && sends_to(fixture, 2) == 1);
    ck_assert_uint_eq(fixture_sending(fixture, 2).type, WIRE_ERROR);
    fixture_expect_failure(fixture, ERR_MISMATCH, "node c differs from node a in chunk 1");
    fixture_all_sent(fixture);
    ck_assert(exchange_idle(fixture->exchange));
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_group_that_fails_waits_for_what_was_answered_early)
{
    struct fixture *fixture = one_on_each(0);
    submit_large(fixture, 0, COLLECTIVE_ALL_GATHER, 0, 0);
    submit_large(fixture, 0, COLLECTIVE_ALL_GATHER, 1, 2ull * FIXTURE_CHUNK);
    fixture_all_sent(fixture);
    ck_assert_int_eq(ask_for(fixture, 1, 1, 2), 0);
    ck_assert_uint_eq(fixture->send_count, 1);
    exchange_group_stop(fixture->exchange, FIXTURE_JOB, 0);
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.slots, 1); /* the chunk that is being sent */
    fixture_all_sent(fixture);
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.slots, 0);
    fixture_destroy(fixture);
}
END_TEST

/* --- windows ---------------------------------------------------------------------------------- */

/* Two nodes of two ranks each: 0 and 1 here, 2 and 3 on node 1. */
static struct fixture *two_and_two(uint32_t self, uint32_t window)
{
    struct fixture_options options = {.self = self,
                                      .nodes = 2,
                                      .ranks = 4,
                                      .rank_nodes = {0, 0, 1, 1},
                                      .weights = {1, 1},
                                      .window = window};
    return fixture_create(&options);
}

START_TEST(each_owner_has_a_window_of_its_own)
{
    struct fixture *fixture = one_on_each(3);
    submit_large(fixture, 0, COLLECTIVE_ALL_GATHER, 0, 0);
    for (uint32_t block = 1; block <= 3; block++)
        submit_large(fixture, 0, COLLECTIVE_ALL_GATHER, block, 20ull * FIXTURE_CHUNK);
    /* Two to each, the collective itself to node 1 among them, and two to itself, where they are
     * chunks and slots: the last places are for the oldest, which has nothing more to send. */
    ck_assert_uint_eq(sends_to(fixture, 1), 2);
    ck_assert_uint_eq(sends_to(fixture, 2), 2);
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.slots, 2 + 2 + 2 * 2);
    fixture_all_sent(fixture);
    struct wire_header header = block_header(1, WIRE_RESULT, 0, COLLECTIVE_ALL_GATHER, 0, 0);
    header.ask.count = 0;
    ck_assert_int_eq(block_message(fixture, &header, 1, false, 0), 0);
    ck_assert_uint_eq(sends_to(fixture, 1), 1); /* the place that is free again */
    ck_assert_uint_eq(sends_to(fixture, 2), 0);
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.slots, 2 + 2 + 2 * 3); /* its own block is the oldest now */
    fixture_destroy(fixture);
}
END_TEST

/* Contributions to a reduce_scatter lie at their owner until the other nodes' are there, and have
 * no results that follow: twice as many are under way, within the window. */
START_TEST(a_sum_in_blocks_has_twice_as_much_under_way)
{
    static const struct {
        uint8_t kind;
        uint32_t window, expected;
    } cases[] = {{COLLECTIVE_REDUCE_SCATTER, 32, 12},
                 {COLLECTIVE_REDUCE_SCATTER, 8, 7}, /* the last is for the oldest */
                 {COLLECTIVE_ALL_GATHER, 32, 6}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fixture_options options = {.nodes = 2,
                                          .ranks = 2,
                                          .rank_nodes = {0, 1},
                                          .weights = {1},
                                          .window = cases[i].window,
                                          .window_bytes = 6 * FIXTURE_CHUNK * sizeof(float)};
        struct fixture *fixture = fixture_create(&options);
        submit_large(fixture, 0, cases[i].kind, 0, 0);
        for (uint32_t block = 1; block <= 2; block++)
            submit_large(fixture, 0, cases[i].kind, block, 64ull * FIXTURE_CHUNK);
        ck_assert_uint_eq(sends_to(fixture, 1), cases[i].expected);
        fixture_destroy(fixture);
    }
}
END_TEST

/* The other nodes' parts of an all_gather share this node's link. No more of its own is lent, so
 * that all stay in step. */
START_TEST(parts_that_are_gathered_share_what_is_under_way)
{
    static const struct {
        uint32_t window_chunks, expected;
    } cases[] = {{8, 4}, {6, 3}, {4, 2}, {1, 2}};
    struct fixture_options options = {
        .nodes = 3, .ranks = 3, .rank_nodes = {0, 1, 2}, .weights = {1}, .window = 32};
    options.window_bytes = cases[_i].window_chunks * FIXTURE_CHUNK * (uint32_t)sizeof(float);
    struct fixture *fixture = fixture_create(&options);
    for (uint32_t block = 0; block <= 3; block++)
        submit_large(fixture, 0, COLLECTIVE_ALL_GATHER, block, 64ull * FIXTURE_CHUNK);
    ck_assert_uint_eq(sends_to(fixture, 1), cases[_i].expected);
    ck_assert_uint_eq(sends_to(fixture, 2), cases[_i].expected);
    struct exchange_totals totals; /* chunks and slots; of the collective itself one each */
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.slots, 2 * cases[_i].expected + 2 * (cases[_i].expected + 1));
    fixture_destroy(fixture);
}
END_TEST

/* The last to come asks for the others' parts first, and gives them its own then. */
START_TEST(what_a_node_asks_for_leaves_before_what_it_gives)
{
    struct fixture *fixture = one_on_each(0);
    for (uint32_t chunk = 0; chunk < 2; chunk++) {
        ck_assert_int_eq(ask_for(fixture, 1, chunk, 2), 0);
        ck_assert_int_eq(ask_for(fixture, 2, chunk, 2), 0);
    }
    for (uint32_t block = 0; block <= 3; block++) {
        struct arena_submission it = block_ask(fixture, 0, 0, COLLECTIVE_ALL_GATHER, 0, block);
        it.in_offset = fixture_offset(fixture, 0, 0);
        it.out_offset = fixture_offset(fixture, 0, 1);
        it.count = block == 0 ? 0 : 2ull * FIXTURE_CHUNK;
        ck_assert_int_eq(exchange_submit(fixture->exchange, &fixture->workers[0], &it,
                                         fixture->now_ns, &fixture->error),
                         0);
    }
    ck_assert_uint_eq(fixture->send_count, 0);
    exchange_run(fixture->exchange);
    enum { ASKS = 1 + 2 * 2, ANSWERS = 2 * 2 };
    ck_assert_uint_eq(fixture->send_count, ASKS + ANSWERS);
    for (uint32_t i = 0; i < ASKS + ANSWERS; i++)
        ck_assert_uint_eq(fixture_sending(fixture, i).type,
                          i < ASKS ? WIRE_CONTRIBUTION : WIRE_RESULT);
    fixture_all_sent(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* A rank that comes late for its part keeps back no other's, up to the window: that rank may be who
 * it waits for. */
START_TEST(a_block_for_a_late_rank_leaves_room_for_others)
{
    struct fixture *fixture = two_and_two(0, 16);
    submit_large(fixture, 0, COLLECTIVE_SCATTER, 0, 0);
    submit_large(fixture, 0, COLLECTIVE_SCATTER, 1 + 1, FIXTURE_CHUNK);
    submit_large(fixture, 0, COLLECTIVE_SCATTER, 1 + 2, 8ull * FIXTURE_CHUNK);
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    uint64_t before = totals.slots;
    submit_large(fixture, 0, COLLECTIVE_SCATTER, 1 + 3, 2ull * FIXTURE_CHUNK);
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(before, 2 * 8); /* chunks and slots */
    ck_assert_uint_eq(totals.slots, 2 * (8 + 2));
    fixture_destroy(fixture);
}
END_TEST

/* Where a rank of the node may still come with an older block, the last place is kept for it: two
 * nodes could otherwise fill their windows to an owner with blocks that have no place at the other.
 */
START_TEST(the_last_place_waits_for_ranks_that_may_have_older_blocks)
{
    enum { A = 1 + 0 * 4 + 2, B = 1 + 0 * 4 + 3, C = 1 + 1 * 4 + 2, D = 1 + 1 * 4 + 3 };
    uint64_t count = 8ull * FIXTURE_CHUNK;
    struct fixture *fixture = two_and_two(1, 2);
    submit_large(fixture, 3, COLLECTIVE_ALL_TO_ALL, 0, 0);
    submit_large(fixture, 3, COLLECTIVE_ALL_TO_ALL, B, count);
    submit_large(fixture, 3, COLLECTIVE_ALL_TO_ALL, D, count);
    ck_assert_uint_eq(fixture->send_count, 1); /* of B; not D, nor a second */
    ck_assert_uint_eq(fixture_sending(fixture, 0).ask.block, B);
    submit_large(fixture, 2, COLLECTIVE_ALL_TO_ALL, 0, 0);
    ck_assert_uint_eq(fixture->send_count, 2); /* the collective itself */
    ck_assert_uint_eq(fixture_sending(fixture, 1).ask.block, 0);
    fixture_all_sent(fixture);
    struct wire_header header = block_header(0, WIRE_RESULT, 0, COLLECTIVE_ALL_TO_ALL, 0, 0);
    header.ask.count = 0;
    ck_assert_int_eq(block_message(fixture, &header, 0, false, 0), 0);
    ck_assert_uint_eq(fixture->send_count, 0); /* B is the oldest here, A may come */
    submit_large(fixture, 2, COLLECTIVE_ALL_TO_ALL, A, count);
    ck_assert_uint_eq(fixture->send_count, 1);
    ck_assert_uint_eq(fixture_sending(fixture, 0).ask.block, A);
    fixture_destroy(fixture);
}
END_TEST

/* More contributions than the window from a node end its connection, whatever they are for. */
START_TEST(an_owner_hears_no_more_than_the_window)
{
    struct fixture *fixture = two_and_two(0, 2);
    for (uint32_t chunk = 0; chunk < 3; chunk++) {
        struct wire_header header =
            block_header(1, WIRE_CONTRIBUTION, 0, COLLECTIVE_ALL_GATHER, 0, chunk == 1 ? 2 : 1);
        header.ask.count = 8ull * FIXTURE_CHUNK;
        header.chunk = chunk;
        int result = block_message(fixture, &header, 1, false, 0);
        if (chunk < 2)
            ck_assert_int_eq(result, 0);
        else
            fixture_expect_error(fixture, result, ERR_PROTOCOL, "more than 2 contributions");
    }
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_blocks");
    TCase *tests = tcase_create("blocks");
    tcase_add_loop_test(tests, what_a_node_sends_and_gets, 0, 3 * (int)PARTS);
    tcase_add_loop_test(tests, ranks_of_a_node_give_to_each_other_at_once, 0, 4);
    tcase_add_test(tests, an_empty_block_is_told_all_the_same);
    tcase_add_test(tests, the_collective_itself_meets_at_the_server);
    tcase_add_test(tests, a_block_waits_for_all_sends_from_its_arena);
    tcase_add_test(tests, who_has_asked_is_answered_at_once);
    tcase_add_test(tests, who_is_answered_may_ask_on);
    tcase_add_test(tests, who_disagrees_after_an_answer_is_named);
    tcase_add_test(tests, a_group_that_fails_waits_for_what_was_answered_early);
    tcase_add_test(tests, each_owner_has_a_window_of_its_own);
    tcase_add_test(tests, a_sum_in_blocks_has_twice_as_much_under_way);
    tcase_add_loop_test(tests, parts_that_are_gathered_share_what_is_under_way, 0, 4);
    tcase_add_test(tests, what_a_node_asks_for_leaves_before_what_it_gives);
    tcase_add_test(tests, a_block_for_a_late_rank_leaves_room_for_others);
    tcase_add_test(tests, the_last_place_waits_for_ranks_that_may_have_older_blocks);
    tcase_add_test(tests, an_owner_hears_no_more_than_the_window);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
