/* The way of the data: which messages carry what, in which order sums are made, how many chunks are
 * under way, and when an arena may be written to. */
#include "tests/lib/server/exchange_fixture.h"
#include "tests/lib/suite.h"

#define COUNT FIXTURE_CHUNK

/* Ranks 0 and 3 here (node 0), rank 1 on node 2, rank 2 on node 1: rank order is not node order. */
static struct fixture *four_ranks(uint32_t server)
{
    struct fixture_options options = {.nodes = 3, .ranks = 4, .rank_nodes = {0, 2, 1, 0}};
    options.weights[server] = 1;
    return fixture_create(&options);
}

static void submit_kind(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint8_t kind,
                        uint8_t op, uint32_t root)
{
    struct arena_submission it =
        fixture_ask(fixture, rank, sequence, kind == COLLECTIVE_BARRIER ? 0 : COUNT);
    it.kind = kind;
    it.op = op;
    it.root = root;
    EXPECT_MSG(fixture_submit(fixture, rank, &it) == 0, "%s", fixture->error.text);
}

static struct wire_header message_of(uint32_t node, uint8_t type, uint8_t kind, uint8_t op,
                                     uint32_t root)
{
    struct wire_header header =
        fixture_header(node, type, 0, 0, kind == COLLECTIVE_BARRIER ? 0 : COUNT);
    header.ask.kind = kind;
    header.ask.op = op;
    header.ask.root = root;
    return header;
}

static const float *sent_floats(const struct fixture *fixture, uint32_t n)
{
    return fixture->sends[n]->payload;
}

/* --- order and divisor ------------------------------------------------------------------------ */

START_TEST(a_nodes_ranks_are_summed_in_rank_order)
{
    struct fixture *fixture = four_ranks(1);
    fixture_submit_sum(fixture, 3, 0, COUNT); /* the later rank first */
    ck_assert_uint_eq(fixture->task_count, 0);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    ck_assert_uint_eq(fixture->task_count, 1);
    const struct reduce_task *task = fixture->tasks[0];
    ck_assert_uint_eq(task->reduction.inputs, 2);
    ck_assert_ptr_eq(task->reduction.in[0], fixture_data(fixture, 0, 0));
    ck_assert_ptr_eq(task->reduction.in[1], fixture_data(fixture, 3, 0));
    ck_assert_uint_eq(task->reduction.outputs, 1);
    ck_assert_uint_eq(task->reduction.count, COUNT);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(nodes_are_summed_in_node_order)
{
    struct fixture *fixture = four_ranks(0);
    ck_assert_int_eq(fixture_contribute(fixture, 2, 0, 0, COUNT, 20), 0);
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 10), 0);
    fixture_fill(fixture, 0, 0, COUNT, 1);
    fixture_fill(fixture, 3, 0, COUNT, 2);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    fixture_submit_sum(fixture, 3, 0, COUNT);
    fixture_reduce(fixture, 0); /* the sum on this node */
    ck_assert_uint_eq(fixture->task_count, 1);
    const struct reduce_task *task = fixture->tasks[0];
    ck_assert_uint_eq(task->reduction.inputs, 3);
    ck_assert(((const float *)task->reduction.in[0])[5] == 13);
    ck_assert(((const float *)task->reduction.in[1])[5] == 10);
    ck_assert(((const float *)task->reduction.in[2])[5] == 20);
    fixture_reduce(fixture, 0);
    for (uint32_t node = 2; node > 0; node--) {
        ck_assert_uint_eq(fixture->send_count, 1); /* node 1, in whose buffer it lies, is last */
        ck_assert_uint_eq(fixture->sends[0]->node, node);
        ck_assert_uint_eq(fixture_sending(fixture, 0).type, WIRE_RESULT);
        ck_assert(sent_floats(fixture, 0)[5] == 43);
        fixture_sent(fixture, 0);
    }
    ck_assert(fixture_data(fixture, 0, 0)[5] == 43 && fixture_data(fixture, 3, 0)[5] == 43);
    fixture_destroy(fixture);
}
END_TEST

/* The average is taken once, by the owner, over the ranks and not the nodes. */
START_TEST(the_owner_divides_by_the_number_of_ranks)
{
    struct fixture *owner = four_ranks(0), *node = four_ranks(1);
    for (uint32_t i = 0; i < 2; i++) {
        submit_kind(node, i * 3, 0, COLLECTIVE_ALL_REDUCE, REDUCE_AVG, 0);
        submit_kind(owner, i * 3, 0, COLLECTIVE_ALL_REDUCE, REDUCE_AVG, 0);
    }
    ck_assert_int_eq(node->tasks[0]->reduction.op, REDUCE_SUM);
    ck_assert_uint_eq(node->tasks[0]->reduction.divisor, 1);
    ck_assert_int_eq(owner->tasks[0]->reduction.op, REDUCE_SUM);
    fixture_reduce(owner, 0);
    float payload[COUNT] = {0};
    for (uint32_t i = 1; i < 3; i++) {
        struct wire_header header =
            message_of(i, WIRE_CONTRIBUTION, COLLECTIVE_ALL_REDUCE, REDUCE_AVG, 0);
        ck_assert_int_eq(fixture_message(owner, i, header, payload, sizeof(payload)), 0);
    }
    ck_assert_int_eq(owner->tasks[0]->reduction.op, REDUCE_AVG);
    ck_assert_uint_eq(owner->tasks[0]->reduction.divisor, 4);
    fixture_destroy(owner);
    fixture_destroy(node);
}
END_TEST

START_TEST(one_node_takes_one_hop)
{
    struct fixture_options options = {.nodes = 2, .ranks = 3, .rank_nodes = {1, 1, 1}, .self = 1};
    options.weights[0] = 1; /* the job's server is not needed */
    struct fixture *fixture = fixture_create(&options);
    ck_assert_uint_eq(fixture->posted_count, 0);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(fixture->pool), 0);
    for (uint32_t rank = 3; rank-- > 0;)
        submit_kind(fixture, rank, 0, COLLECTIVE_ALL_REDUCE, REDUCE_AVG, 0);
    ck_assert_uint_eq(fixture->task_count, 1);
    const struct reduce_task *task = fixture->tasks[0];
    ck_assert_uint_eq(task->reduction.inputs, 3);
    ck_assert_uint_eq(task->reduction.outputs, 3);
    ck_assert_int_eq(task->reduction.op, REDUCE_AVG);
    ck_assert_uint_eq(task->reduction.divisor, 3);
    for (uint32_t rank = 0; rank < 3; rank++) {
        ck_assert_ptr_eq(task->reduction.in[rank], fixture_data(fixture, rank, 0));
        ck_assert_ptr_eq(task->reduction.out[rank], fixture_data(fixture, rank, 0));
    }
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(fixture->send_count, 0);
    ck_assert_uint_eq(fixture->completion_count, 3);
    fixture_destroy(fixture);
}
END_TEST

/* --- which messages carry data ---------------------------------------------------------------- */

/* Whether node 0 sends data when its rank 0 or 3, or another node's rank, is the root. */
static const struct {
    uint8_t kind;
    uint32_t root;
    bool carries; /* node 0's contribution */
    bool gets;    /* node 0's result */
} routes[] = {
    {COLLECTIVE_ALL_REDUCE, 0, true, true}, {COLLECTIVE_REDUCE, 3, true, true},
    {COLLECTIVE_REDUCE, 1, true, false},    {COLLECTIVE_BROADCAST, 3, true, false},
    {COLLECTIVE_BROADCAST, 2, false, true}, {COLLECTIVE_BARRIER, 0, false, false},
};

START_TEST(what_a_node_sends_and_gets)
{
    struct fixture *fixture = four_ranks(1);
    uint8_t kind = routes[_i].kind;
    uint32_t root = routes[_i].root;
    fixture_fill(fixture, 0, 0, COUNT, 1);
    fixture_fill(fixture, 3, 0, COUNT, 2);
    for (uint32_t i = 0; i < 2; i++)
        submit_kind(fixture, i * 3, 0, kind, REDUCE_SUM, root);
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(fixture->send_count, 1);
    struct wire_header header = fixture_sending(fixture, 0);
    ck_assert_uint_eq(fixture->sends[0]->node, 1);
    ck_assert_uint_eq(header.type, WIRE_CONTRIBUTION);
    ck_assert_uint_eq(header.job, FIXTURE_JOB);
    ck_assert_uint_eq(header.ask.kind, kind);
    ck_assert_uint_eq(header.payload_bytes, routes[_i].carries ? 256 : 0);
    if (routes[_i].carries)
        ck_assert(sent_floats(fixture, 0)[1] == (kind == COLLECTIVE_BROADCAST ? 3.0f : 5.0f));
    fixture_all_sent(fixture);

    float payload[COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        payload[i] = 50;
    struct wire_header result = message_of(1, WIRE_RESULT, kind, REDUCE_SUM, root);
    fixture_expect_error(fixture,
                         fixture_message(fixture, 1, result, payload, routes[_i].gets ? 0 : 256),
                         ERR_PROTOCOL, "a result of");
    ck_assert_int_eq(fixture_message(fixture, 1, result, payload, routes[_i].gets ? 256 : 0), 0);
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 0, 100) && fixture_completed(fixture, 3, 100));
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t rank = i * 3;
        float expected = (float)i + 2; /* its own second element */
        bool is_root = rank == root;
        if (kind == COLLECTIVE_ALL_REDUCE || (kind == COLLECTIVE_REDUCE && is_root))
            expected = 50;
        if (kind == COLLECTIVE_BROADCAST)
            expected = root == 2 ? 50 : 3;
        ck_assert_msg(fixture_data(fixture, rank, 0)[1] == expected, "rank %u: %f", rank,
                      (double)fixture_data(fixture, rank, 0)[1]);
    }
    fixture_destroy(fixture);
}
END_TEST

/* An owner gets contributions and returns results. Nodes 1 and 2 have the ranks 2 and 1. */
START_TEST(what_an_owner_gets_and_returns)
{
    struct fixture *fixture = four_ranks(0);
    uint8_t kind = routes[_i].kind;
    uint32_t root = routes[_i].root;
    uint32_t root_node = fixture->options.rank_nodes[root];
    fixture_fill(fixture, 0, 0, COUNT, 1);
    fixture_fill(fixture, 3, 0, COUNT, 2);
    for (uint32_t i = 0; i < 2; i++)
        submit_kind(fixture, i * 3, 0, kind, REDUCE_SUM, root);
    float payload[COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        payload[i] = 50;
    bool reduces = kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE;
    for (uint32_t node = 1; node < 3; node++) {
        bool carries = reduces || (kind == COLLECTIVE_BROADCAST && node == root_node);
        struct wire_header header = message_of(node, WIRE_CONTRIBUTION, kind, REDUCE_SUM, root);
        fixture_expect_error(fixture,
                             fixture_message(fixture, node, header, payload, carries ? 0 : 256),
                             ERR_PROTOCOL, "a contribution of");
        ck_assert_int_eq(fixture_message(fixture, node, header, payload, carries ? 256 : 0), 0);
    }
    fixture_all_reduced(fixture);
    bool answered[3] = {false};
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_uint_gt(fixture->send_count, 0);
        uint32_t node = fixture->sends[0]->node;
        ck_assert(!answered[node]);
        answered[node] = true;
        bool returns = kind == COLLECTIVE_ALL_REDUCE ||
                       (kind == COLLECTIVE_REDUCE && root_node == node) ||
                       (kind == COLLECTIVE_BROADCAST && root_node != node);
        ck_assert_uint_eq(fixture_sending(fixture, 0).payload_bytes, returns ? 256 : 0);
        float expected = reduces ? 105 : root == 3 ? 3 : 50;
        if (returns)
            ck_assert(sent_floats(fixture, 0)[1] == expected);
        fixture_sent(fixture, 0);
    }
    ck_assert(fixture_completed(fixture, 0, 100) && fixture_completed(fixture, 3, 100));
    fixture_destroy(fixture);
}
END_TEST

/* --- the arena is in use ---------------------------------------------------------------------- */

/* With one rank on the node the fabric sends from its arena: the result must wait. */
START_TEST(a_result_waits_for_the_send_from_the_arena)
{
    struct fixture_options options = {
        .nodes = 2, .ranks = 2, .rank_nodes = {0, 1}, .weights = {0, 1}};
    struct fixture *fixture = fixture_create(&options);
    fixture_fill(fixture, 0, 0, COUNT, 1);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    ck_assert_uint_eq(fixture->task_count, 0); /* nothing to sum */
    ck_assert_ptr_eq(fixture->sends[0]->payload, fixture_data(fixture, 0, 0));
    ck_assert_ptr_eq(fixture->sends[0]->worker, &fixture->workers[0]);
    ck_assert_int_eq(fixture_result(fixture, 1, 0, 0, COUNT, 9), 0);
    ck_assert_uint_eq(fixture->task_count, 0); /* nothing is written yet */
    ck_assert_uint_eq(fixture->completion_count, 0);
    ck_assert(fixture_data(fixture, 0, 0)[0] == 1);
    fixture_sent(fixture, 0);
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 0, 100));
    ck_assert(fixture_data(fixture, 0, 0)[0] == 9);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_sum_in_a_buffer_need_not_wait)
{
    struct fixture *fixture = four_ranks(1);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    fixture_submit_sum(fixture, 3, 0, COUNT);
    fixture_all_reduced(fixture);
    ck_assert_ptr_null(fixture->sends[0]->worker);
    ck_assert_ptr_nonnull(fixture->sends[0]->buffer);
    uint64_t used = buffer_pool_used_bytes(fixture->pool);
    ck_assert_int_eq(fixture_result(fixture, 1, 0, 0, COUNT, 9), 0);
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 0, 100) && fixture_completed(fixture, 3, 100));
    ck_assert_uint_eq(buffer_pool_used_bytes(fixture->pool), used); /* the send still holds it */
    fixture_sent(fixture, 0);
    ck_assert_uint_lt(buffer_pool_used_bytes(fixture->pool), used);
    fixture_destroy(fixture);
}
END_TEST

/* A broadcast's root on the owner: its arena is sent to the others, and is its own again after. */
START_TEST(a_broadcast_from_the_owners_arena_waits_for_all_sends)
{
    struct fixture_options options = {
        .nodes = 3, .ranks = 3, .rank_nodes = {0, 1, 2}, .weights = {1}};
    struct fixture *fixture = fixture_create(&options);
    submit_kind(fixture, 0, 0, COLLECTIVE_BROADCAST, 0, 0);
    for (uint32_t node = 1; node < 3; node++) {
        struct wire_header header = message_of(node, WIRE_CONTRIBUTION, COLLECTIVE_BROADCAST, 0, 0);
        ck_assert_int_eq(fixture_message(fixture, node, header, NULL, 0), 0);
    }
    ck_assert_uint_eq(fixture->send_count, 2);
    ck_assert_ptr_eq(fixture->sends[0]->payload, fixture_data(fixture, 0, 0));
    fixture_sent(fixture, 1);
    ck_assert_uint_eq(fixture->completion_count, 0);
    fixture_sent(fixture, 0);
    ck_assert(fixture_completed(fixture, 0, 100));
    fixture_destroy(fixture);
}
END_TEST

/* Chunk 0 waits for all, in case one asks for something else; what follows does not. */
START_TEST(a_broadcast_goes_to_each_node_that_has_asked)
{
    struct fixture_options options = {
        .nodes = 3, .ranks = 3, .rank_nodes = {0, 1, 2}, .weights = {1}};
    struct fixture *fixture = fixture_create(&options);
    struct arena_submission it = fixture_ask(fixture, 0, 0, 2 * COUNT);
    it.kind = COLLECTIVE_BROADCAST;
    ck_assert_int_eq(fixture_submit(fixture, 0, &it), 0);
    struct wire_header header = message_of(2, WIRE_CONTRIBUTION, COLLECTIVE_BROADCAST, 0, 0);
    header.ask.count = 2 * COUNT;
    ck_assert_int_eq(fixture_message(fixture, 2, header, NULL, 0), 0);
    ck_assert_uint_eq(fixture->send_count, 0);
    header.chunk = 1;
    ck_assert_int_eq(fixture_message(fixture, 2, header, NULL, 0), 0);
    ck_assert_uint_eq(fixture->send_count, 1);
    ck_assert_uint_eq(fixture->sends[0]->node, 2);
    ck_assert_ptr_eq(fixture->sends[0]->payload, fixture_data(fixture, 0, 0) + COUNT);
    fixture_all_sent(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* Nodes 1 to 3 contribute to this collective of kind, rooted at rank 1, of this owner's. */
static void contribute_all(struct fixture *fixture, uint64_t sequence, uint8_t kind)
{
    float payload[COUNT] = {0};
    submit_kind(fixture, 0, sequence, kind, REDUCE_SUM, 1);
    for (uint32_t node = 1; node < 4; node++) {
        struct wire_header header = message_of(node, WIRE_CONTRIBUTION, kind, REDUCE_SUM, 1);
        header.sequence = sequence;
        bool carries = kind != COLLECTIVE_BROADCAST || node == 1;
        EXPECT_MSG(fixture_message(fixture, node, header, payload, carries ? 256 : 0) == 0, "%s",
                   fixture->error.text);
    }
    fixture_all_reduced(fixture);
}

/* Gives back what goes to that node; returns how many there were. */
static uint32_t sent_to(struct fixture *fixture, uint32_t node)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < fixture->send_count;) {
        if (fixture->sends[i]->node == node) {
            fixture_sent(fixture, i);
            count++;
            i = 0;
        } else {
            i++;
        }
    }
    return count;
}

/* A node that takes no results keeps the buffers in which they lie. The node that lent such a
 * buffer is answered only when the buffer is free. If it were answered before, it would go on, and
 * its contributions would take the receives that are promised to its other messages; nodes could
 * then wait for each other in a circle. */
START_TEST(who_lent_a_buffer_is_answered_last)
{
    static const uint8_t kinds[] = {COLLECTIVE_BROADCAST, COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE};
    uint8_t kind = kinds[_i];
    struct fixture_options options = {
        .nodes = 4, .ranks = 4, .rank_nodes = {0, 1, 2, 3}, .weights = {1}};
    struct fixture *fixture = fixture_create(&options);
    uint32_t answered[4] = {0}, window = 4, receives = 11;
    for (uint32_t sequence = 0; sequence < window; sequence++) {
        contribute_all(fixture, sequence, kind);
        answered[1] += sent_to(fixture, 1);
        answered[2] += sent_to(fixture, 2);
        answered[1] += sent_to(fixture, 1); /* which waited for those */
    }
    /* Node 3 has taken nothing, and its window is full. A contribution of the others has been
     * answered, or still has its receive. */
    for (uint32_t node = 1; node < 3; node++)
        ck_assert_uint_le(receives - fixture_posted(fixture, node) + answered[node], window);
    fixture_all_sent(fixture);
    for (uint32_t node = 1; node < 4; node++)
        ck_assert_uint_eq(fixture_posted(fixture, node), receives);
    for (uint32_t sequence = 0; sequence < window; sequence++)
        ck_assert(fixture_completed(fixture, 0, 100 + sequence));
    fixture_destroy(fixture);
}
END_TEST

/* An answer that waits for a send is freed when the send comes back after the group has failed. */
START_TEST(a_last_answer_goes_with_its_group)
{
    struct fixture_options options = {
        .nodes = 4, .ranks = 4, .rank_nodes = {0, 1, 2, 3}, .weights = {1}};
    struct fixture *fixture = fixture_create(&options);
    contribute_all(fixture, 0, COLLECTIVE_BROADCAST);
    ck_assert_uint_eq(fixture->send_count, 2);
    exchange_job_fail(fixture->exchange, FIXTURE_JOB);
    fixture_sent(fixture, 1);
    ck_assert_uint_eq(fixture->send_count, 1);
    fixture_sent(fixture, 0);
    ck_assert_uint_eq(fixture->send_count, 0);
    ck_assert_uint_eq(fixture_posted(fixture, 1), 11);
    fixture_destroy(fixture);
}
END_TEST

/* --- the window ------------------------------------------------------------------------------- */

static struct fixture *one_rank_a_node(uint32_t window)
{
    struct fixture_options options = {
        .nodes = 2, .ranks = 2, .rank_nodes = {0, 1}, .weights = {0, 1}, .window = window};
    return fixture_create(&options);
}

START_TEST(no_more_chunks_are_under_way_than_the_window)
{
    for (uint32_t window = 2; window < 8; window++) {
        struct fixture *fixture = one_rank_a_node(window);
        uint32_t chunks = 40;
        fixture_submit_sum(fixture, 0, 0, (uint64_t)chunks * COUNT);
        for (uint32_t done = 0; done < chunks; done++) {
            uint32_t expected = chunks - done < window ? chunks - done : window;
            ck_assert_uint_eq(fixture->send_count, expected);
            ck_assert_uint_eq(fixture_sending(fixture, 0).chunk, done);
            fixture_sent(fixture, 0);
            ck_assert_uint_eq(fixture->send_count, expected - 1); /* sent is not delivered */
            ck_assert_int_eq(fixture_result(fixture, 1, 0, done, (uint64_t)chunks * COUNT, 1), 0);
            ck_assert_uint_eq(fixture->send_count, expected - 1);
            fixture_all_reduced(fixture);
        }
        ck_assert(fixture_completed(fixture, 0, 100));
        fixture_destroy(fixture);
    }
}
END_TEST

START_TEST(each_server_has_a_window_of_its_own)
{
    struct fixture_options options = {
        .nodes = 3, .ranks = 2, .rank_nodes = {0, 1}, .weights = {0, 1, 1}, .window = 3};
    struct fixture *fixture = fixture_create(&options);
    fixture_submit_sum(fixture, 0, 0, 40 * COUNT);
    ck_assert_uint_eq(fixture->send_count, 6);
    uint32_t to[3] = {0};
    for (uint32_t i = 0; i < 6; i++)
        to[fixture->sends[i]->node]++;
    ck_assert_uint_eq(to[1], 3);
    ck_assert_uint_eq(to[2], 3);
    fixture_destroy(fixture);
}
END_TEST

/* The oldest collective lacks a rank here; the later ones leave it its place. */
START_TEST(the_last_place_is_for_the_oldest)
{
    struct fixture_options options = {
        .nodes = 2, .ranks = 2, .rank_nodes = {0, 1}, .weights = {0, 1}, .window = 3};
    struct fixture *fixture = fixture_create(&options);
    struct arena_submission staged = fixture_ask(fixture, 0, 0, COUNT);
    staged.flags = ARENA_FLAG_STAGED;
    ck_assert_int_eq(fixture_submit(fixture, 0, &staged), 0);
    for (uint64_t sequence = 1; sequence < 6; sequence++)
        fixture_submit_sum(fixture, 0, sequence, COUNT);
    ck_assert_uint_eq(fixture->send_count, 2); /* of three places */
    ck_assert_uint_eq(fixture_sending(fixture, 0).sequence, 1);
    ck_assert_uint_eq(fixture_sending(fixture, 1).sequence, 2);
    ck_assert_int_eq(fixture_hand_over(fixture, 0, 0, 0, fixture_offset(fixture, 0, 7)), 0);
    ck_assert_uint_eq(fixture->send_count, 3);
    ck_assert_uint_eq(fixture_sending(fixture, 2).sequence, 0);
    /* the oldest is done: now 1 is, and may use the last place, but has nothing more to send */
    fixture_all_sent(fixture);
    ck_assert_int_eq(fixture_result(fixture, 1, 0, 0, COUNT, 1), 0);
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(fixture->send_count, 0);
    ck_assert_int_eq(fixture_result(fixture, 1, 2, 0, COUNT, 1), 0);
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(fixture->send_count, 1);
    ck_assert_uint_eq(fixture_sending(fixture, 0).sequence, 3);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_quarter_of_a_shard_is_under_way_at_once)
{
    static const struct {
        uint32_t chunks, expected;
    } cases[] = {{3, 3}, {4, 4}, {5, 4}, {16, 4}, {20, 5}, {40, 10}, {100, 16}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fixture *fixture = one_rank_a_node(16);
        fixture_submit_sum(fixture, 0, 0, (uint64_t)cases[i].chunks * COUNT);
        ck_assert_uint_eq(fixture->send_count, cases[i].expected);
        fixture_destroy(fixture);
    }
}
END_TEST

static struct fixture *six_chunks_of_network(void)
{
    struct fixture_options options = {.nodes = 2,
                                      .ranks = 2,
                                      .rank_nodes = {0, 1},
                                      .weights = {0, 1},
                                      .window = 16,
                                      .window_bytes = 6 * COUNT * sizeof(float) + 1};
    return fixture_create(&options);
}

/* The limit is for all collectives together; the size of the next one's chunks decides how many of
 * them it lets go. */
START_TEST(no_more_bytes_are_under_way_than_the_network_is_given)
{
    struct fixture *fixture = six_chunks_of_network();
    fixture_submit_sum(fixture, 0, 0, 16 * COUNT);
    ck_assert_uint_eq(fixture->send_count, 4);
    fixture_submit_sum(fixture, 0, 1, 40 * COUNT);
    ck_assert_uint_eq(fixture->send_count, 4); /* what is older goes first */
    fixture_destroy(fixture);

    fixture = six_chunks_of_network();
    for (uint64_t sequence = 0; sequence < 20; sequence++)
        fixture_submit_sum(fixture, 0, sequence, COUNT);
    ck_assert_uint_eq(fixture->send_count, 6);
    fixture_destroy(fixture);

    fixture = six_chunks_of_network();
    for (uint64_t sequence = 0; sequence < 20; sequence++)
        fixture_submit_sum(fixture, 0, sequence, COUNT / 2);
    ck_assert_uint_eq(fixture->send_count, 12);
    fixture_destroy(fixture);
}
END_TEST

/* Were it kept back until they are done, and they on another node by others, nobody would go on. */
START_TEST(the_oldest_goes_however_much_others_have_under_way)
{
    struct fixture *fixture = six_chunks_of_network();
    struct arena_submission staged = fixture_ask(fixture, 0, 0, 2 * COUNT);
    staged.flags = ARENA_FLAG_STAGED;
    ck_assert_int_eq(fixture_submit(fixture, 0, &staged), 0);
    for (uint64_t sequence = 1; sequence < 10; sequence++)
        fixture_submit_sum(fixture, 0, sequence, COUNT);
    ck_assert_uint_eq(fixture->send_count, 6);
    for (uint32_t chunk = 0; chunk < 2; chunk++)
        ck_assert_int_eq(
            fixture_hand_over(fixture, 0, 0, chunk, fixture_offset(fixture, 0, 12 + chunk)), 0);
    ck_assert_uint_eq(fixture->send_count, 7); /* its second waits for its first, or for room */
    ck_assert_uint_eq(fixture_sending(fixture, 6).sequence, 0);
    fixture_all_sent(fixture);
    ck_assert_int_eq(fixture_result(fixture, 1, 0, 0, 2 * COUNT, 1), 0);
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(fixture->send_count, 1);
    ck_assert_uint_eq(fixture_sending(fixture, 0).chunk, 1);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(smaller_priorities_go_first_then_older_ones)
{
    struct fixture *fixture = one_rank_a_node(2);
    static const uint32_t priorities[] = {9, 5, 7, 5, 0};
    for (uint64_t sequence = 0; sequence < 5; sequence++) {
        struct arena_submission it = fixture_ask(fixture, 0, sequence, COUNT);
        it.priority = priorities[sequence];
        ck_assert_int_eq(exchange_submit(fixture->exchange, &fixture->workers[0], &it, 0, NULL), 0);
    }
    fixture_run(fixture);
    /* one place by priority, the last one for the oldest */
    ck_assert_uint_eq(fixture->send_count, 2);
    ck_assert_uint_eq(fixture_sending(fixture, 0).sequence, 4);
    ck_assert_uint_eq(fixture_sending(fixture, 1).sequence, 0);
    fixture_all_sent(fixture);
    /* The oldest has gone: now 1 is, and takes its place. */
    ck_assert_int_eq(fixture_result(fixture, 1, 0, 0, COUNT, 1), 0);
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(fixture->send_count, 1);
    ck_assert_uint_eq(fixture_sending(fixture, 0).sequence, 1);
    fixture_all_sent(fixture);
    /* 1 is under way still and nobody else may have the last place */
    ck_assert_int_eq(fixture_result(fixture, 1, 4, 0, COUNT, 1), 0);
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(fixture->send_count, 0);
    ck_assert_int_eq(fixture_result(fixture, 1, 1, 0, COUNT, 1), 0);
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(fixture->send_count, 2);
    ck_assert_uint_eq(fixture_sending(fixture, 0).sequence, 3);
    ck_assert_uint_eq(fixture_sending(fixture, 1).sequence, 2);
    fixture_destroy(fixture);
}
END_TEST

/* All at once, each once: those that are closing already, or cannot go yet, keep nobody busy. */
START_TEST(closing_all_jobs_leaves_what_is_under_way)
{
    enum { MORE = 80 };
    struct fixture_options options = {.nodes = 1, .ranks = 2, .rank_nodes = {0, 0}, .weights = {1}};
    struct fixture *fixture = fixture_create(&options);
    for (uint64_t i = 0; i < MORE; i++)
        ck_assert_int_eq(fixture_open_job(fixture, 0x1000 + i), 0);
    for (uint32_t rank = 0; rank < 2; rank++)
        fixture_submit_sum(fixture, rank, 0, COUNT);
    ck_assert_uint_eq(fixture->task_count, 1);
    struct exchange_totals totals;
    for (int again = 0; again < 2; again++) {
        exchange_close_jobs(fixture->exchange);
        exchange_totals(fixture->exchange, &totals);
        ck_assert_uint_eq(totals.jobs, 1);
        ck_assert(fixture->attached[0] && fixture->attached[1]);
    }
    fixture_all_reduced(fixture);
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.jobs, 0);
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange");
    TCase *tests = tcase_create("exchange");
    int count = sizeof(routes) / sizeof(routes[0]);
    tcase_add_test(tests, a_nodes_ranks_are_summed_in_rank_order);
    tcase_add_test(tests, nodes_are_summed_in_node_order);
    tcase_add_test(tests, the_owner_divides_by_the_number_of_ranks);
    tcase_add_test(tests, one_node_takes_one_hop);
    tcase_add_loop_test(tests, what_a_node_sends_and_gets, 0, count);
    tcase_add_loop_test(tests, what_an_owner_gets_and_returns, 0, count);
    tcase_add_test(tests, a_result_waits_for_the_send_from_the_arena);
    tcase_add_test(tests, a_sum_in_a_buffer_need_not_wait);
    tcase_add_test(tests, a_broadcast_goes_to_each_node_that_has_asked);
    tcase_add_test(tests, a_broadcast_from_the_owners_arena_waits_for_all_sends);
    tcase_add_loop_test(tests, who_lent_a_buffer_is_answered_last, 0, 3);
    tcase_add_test(tests, a_last_answer_goes_with_its_group);
    tcase_add_test(tests, no_more_chunks_are_under_way_than_the_window);
    tcase_add_test(tests, each_server_has_a_window_of_its_own);
    tcase_add_test(tests, the_last_place_is_for_the_oldest);
    tcase_add_test(tests, a_quarter_of_a_shard_is_under_way_at_once);
    tcase_add_test(tests, no_more_bytes_are_under_way_than_the_network_is_given);
    tcase_add_test(tests, the_oldest_goes_however_much_others_have_under_way);
    tcase_add_test(tests, smaller_priorities_go_first_then_older_ones);
    tcase_add_test(tests, closing_all_jobs_leaves_what_is_under_way);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
