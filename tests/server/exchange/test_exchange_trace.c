/* The records that a trace has of the chunks' way: every stage, in its order, and what was open at
 * its end. A worker's words change nothing but what is shown. */
#include <stdlib.h>

#include "tests/lib/server/exchange_fixture.h"
#include "tests/lib/suite.h"

#define COUNT FIXTURE_CHUNK
#define NUMBER 5

/* Ranks 0 and 1 here, rank 2 on node 1; `server` owns all. */
static struct fixture *three_ranks(uint32_t server)
{
    struct fixture_options options = {.nodes = 2, .ranks = 3, .rank_nodes = {0, 0, 1}};
    options.weights[server] = 1;
    return fixture_create(&options);
}

static struct fixture *one_node(void)
{
    struct fixture_options options = {.nodes = 1, .ranks = 2, .rank_nodes = {0, 0}, .weights = {1}};
    return fixture_create(&options);
}

static void start(struct fixture *fixture, uint32_t capacity)
{
    struct trace *trace = trace_create(NUMBER, FIXTURE_JOB, capacity);
    EXPECT_MSG(exchange_trace_start(fixture->exchange, trace, &fixture->error) == 0, "%s",
               fixture->error.text);
}

/* The trace, the caller's, which is over for this reason. */
static struct trace *taken(struct fixture *fixture, enum trace_end end)
{
    struct engine_event *event = fixture_event(fixture, ENGINE_TRACED);
    struct trace *trace = event->trace;
    event->trace = NULL;
    EXPECT(event->code == 0 && trace && trace->end == end && trace->number == NUMBER);
    engine_event_free(event);
    for (uint32_t i = 0; i < trace->count; i++) {
        const struct trace_record *it = &trace->records[i];
        EXPECT(it->begin_ns >= trace->began_ns && it->begin_ns <= it->end_ns);
        EXPECT(it->end_ns <= trace->ended_ns);
        EXPECT(it->stage < TRACE_STAGES);
    }
    return trace;
}

static struct trace *stop(struct fixture *fixture)
{
    exchange_trace_stop(fixture->exchange, NUMBER, TRACE_END_ASKED);
    return taken(fixture, TRACE_END_ASKED);
}

static void submit_staged(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint64_t count)
{
    struct arena_submission ask = fixture_ask(fixture, rank, sequence, count);
    ask.flags = ARENA_FLAG_STAGED;
    EXPECT_MSG(fixture_submit(fixture, rank, &ask) == 0, "%s", fixture->error.text);
}

static void hand_over(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint32_t chunk,
                      uint64_t begin_ns, uint64_t end_ns)
{
    struct arena_submission it = {.type = ARENA_CHUNK,
                                  .request = 100 + sequence,
                                  .sequence = sequence,
                                  .chunk = chunk,
                                  .begin_ns = begin_ns,
                                  .end_ns = end_ns,
                                  .in_offset = fixture_offset(fixture, rank, chunk)};
    EXPECT_MSG(fixture_submit(fixture, rank, &it) == 0, "%s", fixture->error.text);
}

static void copied(struct fixture *fixture, uint32_t rank, uint64_t begin_ns, uint64_t end_ns)
{
    struct arena_submission it = {.type = ARENA_COPIED,
                                  .sequence = 3,
                                  .chunk = 4,
                                  .block = 5,
                                  .begin_ns = begin_ns,
                                  .end_ns = end_ns,
                                  .omitted = 2};
    fixture->workers[rank].given_back++;
    EXPECT_MSG(fixture_submit(fixture, rank, &it) == 0, "%s", fixture->error.text);
}

/* The stages of the trace must be these, up to TRACE_STAGES; their order is that of their ends. */
static void expect_stages(const struct trace *trace, const enum trace_stage *stages)
{
    uint32_t i = 0;
    for (; stages[i] != TRACE_STAGES; i++) {
        EXPECT_MSG(i < trace->count, "no %s", trace_stage_name(stages[i]));
        EXPECT_MSG(trace->records[i].stage == stages[i], "%u: %s, not %s", i,
                   trace_stage_name((enum trace_stage)trace->records[i].stage),
                   trace_stage_name(stages[i]));
    }
    EXPECT_MSG(trace->count == i, "%u records", trace->count);
}

static const struct trace_record *find(const struct trace *trace, enum trace_stage stage)
{
    for (uint32_t i = 0; i < trace->count; i++) {
        if (trace->records[i].stage == stage)
            return &trace->records[i];
    }
    ck_abort_msg("no %s", trace_stage_name(stage));
    return NULL;
}

/* --- the way ---------------------------------------------------------------------------------- */

START_TEST(a_chunk_on_one_node)
{
    struct fixture *fixture = one_node();
    fixture->now_ns = 1000;
    start(fixture, 100);
    submit_staged(fixture, 0, 0, COUNT);
    submit_staged(fixture, 1, 0, COUNT);
    fixture->now_ns = 2000;
    hand_over(fixture, 1, 0, 0, 1500, 1600);
    hand_over(fixture, 0, 0, 0, 1700, 1800);
    fixture_all_reduced(fixture);
    struct trace *trace = stop(fixture);
    expect_stages(trace,
                  (enum trace_stage[]){TRACE_ARRIVE, TRACE_COPY_IN, TRACE_COPY_IN, TRACE_WAIT,
                                       TRACE_LOCAL_SUM, TRACE_COLLECTIVE, TRACE_STAGES});
    const struct trace_record *it = trace->records;
    ck_assert_uint_eq(it[0].peer, 1); /* came last */
    ck_assert_uint_eq(it[1].peer, 1);
    ck_assert_uint_eq(it[1].begin_ns, 1500);
    ck_assert_uint_eq(it[1].end_ns, 1600);
    ck_assert_uint_eq(it[2].peer, 0);
    ck_assert_uint_eq(it[3].peer, 0); /* handed it over last */
    ck_assert_uint_gt(it[3].begin_ns, 2000);
    ck_assert_uint_le(it[3].end_ns, it[4].begin_ns);
    for (uint32_t i = 0; i < trace->count; i++) {
        ck_assert_uint_eq(it[i].kind, COLLECTIVE_ALL_REDUCE);
        ck_assert_uint_eq(it[i].bytes, COUNT * sizeof(float));
        ck_assert_uint_eq(it[i].flags, 0);
    }
    trace_free(trace);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_chunk_that_another_node_owns)
{
    struct fixture *fixture = three_ranks(1);
    start(fixture, 100);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    fixture_submit_sum(fixture, 1, 0, COUNT);
    fixture_all_reduced(fixture);
    fixture_all_sent(fixture);
    ck_assert_int_eq(fixture_result(fixture, 1, 0, 0, COUNT, 3), 0);
    fixture_all_reduced(fixture);
    struct trace *trace = stop(fixture);
    /* Not staged: no copies, and it waits from the first submission on. */
    expect_stages(trace, (enum trace_stage[]){TRACE_ARRIVE, TRACE_WAIT, TRACE_LOCAL_SUM, TRACE_SEND,
                                              TRACE_AT_OWNER, TRACE_DELIVER, TRACE_COLLECTIVE,
                                              TRACE_STAGES});
    ck_assert_uint_eq(find(trace, TRACE_SEND)->peer, 1);
    ck_assert_uint_eq(find(trace, TRACE_SEND)->bytes, COUNT * sizeof(float));
    ck_assert_uint_eq(find(trace, TRACE_AT_OWNER)->peer, 1);
    ck_assert_uint_ge(find(trace, TRACE_SEND)->begin_ns, find(trace, TRACE_LOCAL_SUM)->end_ns);
    ck_assert_uint_eq(find(trace, TRACE_AT_OWNER)->begin_ns, find(trace, TRACE_LOCAL_SUM)->end_ns);
    ck_assert_uint_eq(find(trace, TRACE_DELIVER)->begin_ns, find(trace, TRACE_AT_OWNER)->end_ns);
    trace_free(trace);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_chunk_that_this_node_owns)
{
    struct fixture *fixture = three_ranks(0);
    start(fixture, 100);
    ck_assert_int_eq(fixture_contribute(fixture, 1, 0, 0, COUNT, 3), 0);
    fixture_submit_sum(fixture, 1, 0, COUNT);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    fixture_all_reduced(fixture);
    fixture_all_sent(fixture);
    struct trace *trace = stop(fixture);
    expect_stages(trace, (enum trace_stage[]){TRACE_ARRIVE, TRACE_WAIT, TRACE_LOCAL_SUM,
                                              TRACE_GATHER, TRACE_OWNER_SUM, TRACE_AT_OWNER,
                                              TRACE_COLLECTIVE, TRACE_RETURN, TRACE_STAGES});
    ck_assert_uint_eq(find(trace, TRACE_GATHER)->peer, 0); /* this node was the last */
    ck_assert_uint_eq(find(trace, TRACE_OWNER_SUM)->begin_ns, find(trace, TRACE_GATHER)->end_ns);
    ck_assert_uint_eq(find(trace, TRACE_AT_OWNER)->peer, 0);
    ck_assert_uint_eq(find(trace, TRACE_RETURN)->peer, 1);
    ck_assert_uint_eq(find(trace, TRACE_ARRIVE)->peer, 0);
    trace_free(trace);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(data_of_one_rank_is_delivered)
{
    struct fixture *fixture = three_ranks(0);
    start(fixture, 100);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct arena_submission ask = fixture_ask(fixture, rank, 0, COUNT);
        ask.kind = COLLECTIVE_BROADCAST;
        EXPECT(fixture_submit(fixture, rank, &ask) == 0);
    }
    struct wire_header header = fixture_header(1, WIRE_CONTRIBUTION, 0, 0, COUNT);
    header.ask.kind = COLLECTIVE_BROADCAST;
    header.ask.op = 0;
    ck_assert_int_eq(fixture_message(fixture, 1, header, NULL, 0), 0);
    fixture_all_reduced(fixture);
    fixture_all_sent(fixture);
    struct trace *trace = stop(fixture);
    expect_stages(trace, (enum trace_stage[]){TRACE_ARRIVE, TRACE_WAIT, TRACE_GATHER, TRACE_DELIVER,
                                              TRACE_AT_OWNER, TRACE_RETURN, TRACE_COLLECTIVE,
                                              TRACE_STAGES});
    ck_assert_uint_eq(find(trace, TRACE_DELIVER)->kind, COLLECTIVE_BROADCAST);
    trace_free(trace);
    fixture_destroy(fixture);
}
END_TEST

/* Threads that sum say when; their words count where they are there. */
START_TEST(a_task_has_the_time_of_who_did_it)
{
    struct fixture *fixture = one_node();
    fixture->now_ns = 1000;
    start(fixture, 100);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    fixture_submit_sum(fixture, 1, 0, COUNT);
    ck_assert_uint_eq(fixture->task_count, 1);
    ck_assert(fixture->tasks[0]->timed);
    fixture->tasks[0]->begin_ns = 2000;
    fixture->tasks[0]->end_ns = 3000;
    fixture->now_ns = 4000;
    fixture_all_reduced(fixture);
    struct trace *trace = stop(fixture);
    ck_assert_uint_eq(find(trace, TRACE_LOCAL_SUM)->begin_ns, 2000);
    ck_assert_uint_eq(find(trace, TRACE_LOCAL_SUM)->end_ns, 3000);
    trace_free(trace);
    /* Without a trace nobody is asked. */
    fixture_submit_sum(fixture, 0, 1, COUNT);
    fixture_submit_sum(fixture, 1, 1, COUNT);
    ck_assert(!fixture->tasks[0]->timed);
    fixture_destroy(fixture);
}
END_TEST

/* --- the edges -------------------------------------------------------------------------------- */

START_TEST(what_is_open_at_the_end_is_shown)
{
    struct fixture *fixture = three_ranks(0);
    start(fixture, 100);
    ck_assert_int_eq(fixture_contribute(fixture, 1, 1, 0, COUNT, 3), 0); /* of the next one */
    submit_staged(fixture, 0, 0, 2 * COUNT);
    submit_staged(fixture, 1, 0, 2 * COUNT);
    hand_over(fixture, 0, 0, 0, 0, 0);
    hand_over(fixture, 0, 0, 1, 0, 0);
    hand_over(fixture, 1, 0, 0, 0, 0); /* now chunk 0 is summed, chunk 1 waits */
    submit_staged(fixture, 0, 1, COUNT);
    struct trace *trace = stop(fixture);
    uint32_t open = 0;
    for (uint32_t i = 0; i < trace->count; i++) {
        const struct trace_record *it = &trace->records[i];
        if (it->flags & TRACE_FLAG_OPEN) {
            open++;
            ck_assert_uint_eq(it->end_ns, trace->ended_ns);
        }
    }
    /* Collective 0, its two chunks; collective 1, for which rank 1 has not come; its slot. */
    ck_assert_uint_eq(open, 6);
    ck_assert_uint_eq(find(trace, TRACE_LOCAL_SUM)->flags, TRACE_FLAG_OPEN);
    ck_assert_uint_eq(find(trace, TRACE_GATHER)->flags, TRACE_FLAG_OPEN);
    ck_assert_uint_eq(find(trace, TRACE_GATHER)->sequence, 1);
    trace_free(trace);
    fixture_destroy(fixture);
}
END_TEST

/* A send that nobody asks for, a receive whose data does not come, and one within the node that
 * lacks its receiver. */
START_TEST(sends_that_are_open_at_the_end_are_shown)
{
    static const uint32_t ways[][3] = {{0, 2, 0}, {2, 0, 0}, {0, 1, 0}}; /* from, to, who asks */
    struct fixture *fixture = three_ranks(1);
    start(fixture, 100);
    const uint32_t *way = ways[_i];
    struct arena_submission ask = fixture_ask(fixture, way[2], WIRE_SEND_SEQUENCE, COUNT);
    ask.kind = COLLECTIVE_SEND;
    ask.op = 0;
    ask.block = 1 + way[0] * 3 + way[1];
    ck_assert_int_eq(fixture_submit(fixture, way[2], &ask), 0);
    fixture_all_sent(fixture);
    struct trace *trace = stop(fixture);
    uint32_t open = 0;
    for (uint32_t i = 0; i < trace->count; i++)
        open += (trace->records[i].flags & TRACE_FLAG_OPEN) != 0;
    /* The send and what it waits for: also as this node, which owns what is sent from it, sees it.
     */
    ck_assert_uint_eq(open, _i == 0 ? 3 : 2);
    ck_assert_uint_eq(find(trace, TRACE_COLLECTIVE)->kind, COLLECTIVE_SEND);
    ck_assert_uint_eq(find(trace, TRACE_COLLECTIVE)->flags, TRACE_FLAG_OPEN);
    find(trace, _i == 2 ? TRACE_ARRIVE : TRACE_AT_OWNER);
    trace_free(trace);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(what_began_before_is_cut)
{
    struct fixture *fixture = three_ranks(1);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    fixture_submit_sum(fixture, 1, 0, COUNT);
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(fixture->send_count, 1);
    fixture->now_ns = 5000;
    start(fixture, 100);
    fixture_all_sent(fixture);
    ck_assert_int_eq(fixture_result(fixture, 1, 0, 0, COUNT, 3), 0);
    fixture_all_reduced(fixture);
    struct trace *trace = stop(fixture);
    expect_stages(trace, (enum trace_stage[]){TRACE_SEND, TRACE_AT_OWNER, TRACE_DELIVER,
                                              TRACE_COLLECTIVE, TRACE_STAGES});
    ck_assert_uint_eq(trace->records[0].flags, TRACE_FLAG_CUT);
    ck_assert_uint_eq(trace->records[1].flags, TRACE_FLAG_CUT);
    ck_assert_uint_eq(trace->records[2].flags, 0);
    ck_assert_uint_eq(trace->records[3].flags, TRACE_FLAG_CUT);
    ck_assert_uint_eq(trace->records[0].begin_ns, trace->began_ns);
    trace_free(trace);
    fixture_destroy(fixture);
}
END_TEST

/* A chunk that an earlier trace has seen begin does not begin in this one. */
START_TEST(times_of_an_earlier_trace_are_cut)
{
    struct fixture *fixture = three_ranks(1);
    start(fixture, 100);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    fixture_submit_sum(fixture, 1, 0, COUNT);
    fixture_all_reduced(fixture);
    trace_free(stop(fixture));
    start(fixture, 100);
    fixture_all_sent(fixture);
    ck_assert_int_eq(fixture_result(fixture, 1, 0, 0, COUNT, 3), 0);
    struct trace *trace = stop(fixture);
    ck_assert_uint_eq(find(trace, TRACE_AT_OWNER)->flags, TRACE_FLAG_CUT);
    trace_free(trace);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(without_room_records_are_dropped)
{
    struct fixture *fixture = one_node();
    start(fixture, 2);
    for (uint64_t sequence = 0; sequence < 3; sequence++) {
        fixture_submit_sum(fixture, 0, sequence, COUNT);
        fixture_submit_sum(fixture, 1, sequence, COUNT);
        fixture_all_reduced(fixture);
    }
    struct trace *trace = stop(fixture);
    ck_assert_uint_eq(trace->count, 2);
    ck_assert_uint_eq(trace->dropped, 3 * 4 - 2);
    trace_free(trace);
    fixture_destroy(fixture);
}
END_TEST

/* --- workers ---------------------------------------------------------------------------------- */

START_TEST(workers_see_that_they_are_traced)
{
    struct fixture_options options = {
        .nodes = 1, .ranks = 2, .rank_nodes = {0, 0}, .weights = {1}, .leave_closed = true};
    struct fixture *fixture = fixture_create(&options);
    ck_assert_int_eq(fixture_open_job(fixture, FIXTURE_JOB), 0);
    ck_assert_int_eq(fixture_attach(fixture, FIXTURE_JOB, 0), 0);
    ck_assert(!arena_tracing(&fixture->workers[0].arena));
    start(fixture, 10);
    ck_assert(arena_tracing(&fixture->workers[0].arena));
    ck_assert_int_eq(fixture_attach(fixture, FIXTURE_JOB, 1), 0);
    ck_assert(arena_tracing(&fixture->workers[1].arena));
    trace_free(stop(fixture));
    ck_assert(!arena_tracing(&fixture->workers[0].arena));
    ck_assert(!arena_tracing(&fixture->workers[1].arena));
    fixture_destroy(fixture);
}
END_TEST

START_TEST(copies_out_are_recorded)
{
    struct fixture *fixture = one_node();
    fixture->now_ns = 1000;
    copied(fixture, 1, 10, 20); /* nobody asked */
    start(fixture, 10);
    fixture->now_ns = 2000;
    copied(fixture, 1, 1500, 1600);
    struct trace *trace = stop(fixture);
    expect_stages(trace, (enum trace_stage[]){TRACE_COPY_OUT, TRACE_STAGES});
    const struct trace_record *it = trace->records;
    ck_assert_uint_eq(it->begin_ns, 1500);
    ck_assert_uint_eq(it->end_ns, 1600);
    ck_assert_uint_eq(it->peer, 1);
    ck_assert_uint_eq(it->sequence, 3);
    ck_assert_uint_eq(it->chunk, 4);
    ck_assert_uint_eq(it->block, 5);
    ck_assert_uint_eq(it->kind, COLLECTIVE_KIND_COUNT);
    ck_assert_uint_eq(trace->omitted, 2);
    trace_free(trace);
    fixture_destroy(fixture);
}
END_TEST

/* The times are the worker's memory: times that cannot be are not shown, and nothing worse comes of
 * them. */
START_TEST(times_that_cannot_be_are_refused)
{
    struct fixture *fixture = one_node();
    fixture->now_ns = 1000;
    start(fixture, 100);
    copied(fixture, 0, 2, 1);
    copied(fixture, 0, 5000000, 5000001);
    copied(fixture, 0, UINT64_MAX, UINT64_MAX);
    copied(fixture, 0, 1, UINT64_MAX);
    submit_staged(fixture, 0, 0, 2 * COUNT);
    submit_staged(fixture, 1, 0, 2 * COUNT);
    hand_over(fixture, 0, 0, 0, UINT64_MAX, 1);
    hand_over(fixture, 1, 0, 0, 7, 6);
    hand_over(fixture, 0, 0, 1, 0, UINT64_MAX); /* not said at all */
    copied(fixture, 0, 1, 2);                   /* before the trace: nothing */
    fixture_all_reduced(fixture);
    struct trace *trace = stop(fixture);
    ck_assert_uint_eq(trace->refused, 6);
    for (uint32_t i = 0; i < trace->count; i++) {
        ck_assert_uint_ne(trace->records[i].stage, TRACE_COPY_IN);
        ck_assert_uint_ne(trace->records[i].stage, TRACE_COPY_OUT);
    }
    trace_free(trace);
    fixture_destroy(fixture);
}
END_TEST

/* The rank has closed the group while its last words were still in the ring. */
START_TEST(a_copy_may_be_told_of_after_its_group)
{
    struct fixture *fixture = one_node();
    uint32_t members[2] = {0, 1};
    ck_assert_int_eq(exchange_group_open(fixture->exchange, FIXTURE_JOB, 9, members, 2, NULL), 0);
    start(fixture, 10);
    for (int closed = 0; closed < 2; closed++) {
        struct arena_submission it = {.type = ARENA_COPIED,
                                      .group = 9,
                                      .begin_ns = fixture->now_ns,
                                      .end_ns = fixture->now_ns};
        fixture->workers[0].given_back++;
        EXPECT_MSG(fixture_submit(fixture, 0, &it) == 0, "%s", fixture->error.text);
        exchange_group_close(fixture->exchange, FIXTURE_JOB, 9);
    }
    struct trace *trace = stop(fixture);
    ck_assert_uint_eq(trace->count, 2);
    ck_assert_uint_eq(trace->records[1].group, 9);
    trace_free(trace);
    fixture_destroy(fixture);
}
END_TEST

/* Traced or not: of each chunk that came back one copy, and no more. */
START_TEST(more_copies_than_chunks_are_nonsense)
{
    struct fixture *fixture = one_node();
    struct arena_submission it = {.type = ARENA_COPIED, .begin_ns = 1, .end_ns = 2};
    for (int traced = 0; traced < 2; traced++) {
        uint64_t sequence = (uint64_t)traced;
        fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL,
                             "where none has been given back");
        for (uint32_t rank = 0; rank < 2; rank++) {
            submit_staged(fixture, rank, sequence, COUNT);
            hand_over(fixture, rank, sequence, 0, 0, 0);
        }
        fixture_all_reduced(fixture);
        ck_assert_int_eq(fixture_submit(fixture, 0, &it), 0);
        fixture_expect_error(fixture, fixture_submit(fixture, 0, &it), ERR_PROTOCOL,
                             "where none has been given back");
        ck_assert_int_eq(fixture_submit(fixture, 1, &it), 0);
        if (!traced)
            start(fixture, 100);
    }
    trace_free(stop(fixture));
    fixture_destroy(fixture);
}
END_TEST

/* Each has what its own job's chunks went through, and ends by itself. */
START_TEST(two_jobs_are_traced_at_once)
{
    struct fixture *fixture = one_node();
    start(fixture, 100);
    EXPECT(fixture_open_job(fixture, 0x777) == 0);
    struct trace *other = trace_create(NUMBER + 1, 0x777, 100);
    ck_assert_int_eq(exchange_trace_start(fixture->exchange, other, &fixture->error), 0);
    for (uint32_t rank = 0; rank < 2; rank++)
        fixture_submit_sum(fixture, rank, 0, COUNT);
    fixture_all_reduced(fixture);
    ck_assert_uint_eq(exchange_trace_ends(fixture->exchange, NUMBER + 1), 0x777);
    ck_assert_uint_eq(exchange_trace_ends(fixture->exchange, NUMBER + 1), 0);
    ck_assert_uint_eq(exchange_traces_ending(fixture->exchange), 1);
    exchange_job_close(fixture->exchange, 0x777);
    fixture_run(fixture);
    ck_assert_uint_eq(exchange_traces_ending(fixture->exchange), 0);
    struct engine_event *event = fixture_event(fixture, ENGINE_TRACED);
    ck_assert_ptr_eq(event->trace, other);
    ck_assert_uint_eq(other->count, 0);
    engine_event_free(event);
    struct trace *trace = stop(fixture);
    ck_assert_uint_gt(trace->count, 0);
    trace_free(trace);
    fixture_destroy(fixture);
}
END_TEST

/* --- beginning and end ------------------------------------------------------------------------ */

START_TEST(one_trace_of_a_job_that_is_open)
{
    struct fixture *fixture = one_node();
    struct trace *trace = trace_create(1, 0xdead, 10);
    ck_assert_int_eq(exchange_trace_start(fixture->exchange, trace, &fixture->error), ERR_STATE);
    ck_assert_ptr_nonnull(strstr(fixture->error.text, "not open"));
    start(fixture, 10);
    trace->job = FIXTURE_JOB;
    ck_assert_int_eq(exchange_trace_start(fixture->exchange, trace, &fixture->error), ERR_STATE);
    ck_assert_ptr_nonnull(strstr(fixture->error.text, "is traced already"));
    trace_free(trace);
    exchange_trace_stop(fixture->exchange, NUMBER + 1, TRACE_END_ASKED); /* not that one */
    ck_assert_uint_eq(fixture->event_count, 0);
    trace_free(stop(fixture));
    exchange_trace_stop(fixture->exchange, NUMBER, TRACE_END_ASKED); /* it is over */
    ck_assert_uint_eq(fixture->event_count, 0);
    start(fixture, 10);
    trace_free(stop(fixture));
    fixture_destroy(fixture);
}
END_TEST

START_TEST(another_job_is_not_in_it)
{
    struct fixture_options options = {.nodes = 1, .ranks = 2, .rank_nodes = {0, 0}, .weights = {1}};
    struct fixture *fixture = fixture_create(&options);
    ck_assert_int_eq(fixture_open_job(fixture, 0x777), 0);
    struct trace *trace = trace_create(NUMBER, 0x777, 10);
    ck_assert_int_eq(exchange_trace_start(fixture->exchange, trace, &fixture->error), 0);
    ck_assert(!arena_tracing(&fixture->workers[0].arena));
    fixture_submit_sum(fixture, 0, 0, COUNT);
    fixture_submit_sum(fixture, 1, 0, COUNT);
    fixture_all_reduced(fixture);
    trace = stop(fixture);
    ck_assert_uint_eq(trace->count, 0);
    trace_free(trace);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_job_that_ends_ends_its_trace)
{
    struct fixture *fixture = one_node();
    start(fixture, 100);
    fixture_submit_sum(fixture, 0, 0, COUNT);
    fixture_submit_sum(fixture, 1, 0, COUNT); /* a task is out, which is in the memory that goes */
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    struct trace *trace = taken(fixture, TRACE_END_JOB_CLOSED);
    ck_assert_uint_eq(find(trace, TRACE_LOCAL_SUM)->flags, TRACE_FLAG_OPEN);
    trace_free(trace);
    fixture_all_reduced(fixture);
    exchange_trace_stop(fixture->exchange, NUMBER, TRACE_END_ASKED);
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(a_job_that_fails_ends_its_trace)
{
    struct fixture *fixture = one_node();
    start(fixture, 100);
    exchange_job_fail(fixture->exchange, FIXTURE_JOB);
    trace_free(taken(fixture, TRACE_END_JOB_FAILED));
    exchange_job_close(fixture->exchange, FIXTURE_JOB);
    ck_assert_uint_eq(fixture->event_count, 0);
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_trace");
    TCase *tests = tcase_create("exchange_trace");
    tcase_add_test(tests, a_chunk_on_one_node);
    tcase_add_test(tests, a_chunk_that_another_node_owns);
    tcase_add_test(tests, a_chunk_that_this_node_owns);
    tcase_add_test(tests, data_of_one_rank_is_delivered);
    tcase_add_test(tests, a_task_has_the_time_of_who_did_it);
    tcase_add_test(tests, what_is_open_at_the_end_is_shown);
    tcase_add_loop_test(tests, sends_that_are_open_at_the_end_are_shown, 0, 3);
    tcase_add_test(tests, what_began_before_is_cut);
    tcase_add_test(tests, times_of_an_earlier_trace_are_cut);
    tcase_add_test(tests, without_room_records_are_dropped);
    tcase_add_test(tests, workers_see_that_they_are_traced);
    tcase_add_test(tests, copies_out_are_recorded);
    tcase_add_test(tests, times_that_cannot_be_are_refused);
    tcase_add_test(tests, a_copy_may_be_told_of_after_its_group);
    tcase_add_test(tests, more_copies_than_chunks_are_nonsense);
    tcase_add_test(tests, one_trace_of_a_job_that_is_open);
    tcase_add_test(tests, two_jobs_are_traced_at_once);
    tcase_add_test(tests, another_job_is_not_in_it);
    tcase_add_test(tests, a_job_that_ends_ends_its_trace);
    tcase_add_test(tests, a_job_that_fails_ends_its_trace);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
