/* Verdicts over reports of daemons, made by a small model of a job with one fault, whose events go
 * through the account. */
#include "server/waits/verdict.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

#define MS UINT64_C(1000000)
#define NODES_MAX 6u
#define RANKS_MAX 3u

/* --- a model of a job ------------------------------------------------------------------------- */

/* All nodes own a part. A step: ranks compute, submit, hand over; each node's chunks then go to all
 * owners, which sum; results go back to all nodes, over the same links behind the chunks; a node
 * that has all results begins its next step. */
struct model {
    uint32_t nodes, ranks; /* ranks: of each node */
    uint64_t compute_ns, chunk_ns, sum_ns;
    uint64_t jitter_ns;
    uint64_t noise_ns; /* now and then something takes so much longer: others use the machine */
    /* The fault. */
    uint32_t late_rank;          /* rank of the job; WAITS_NOBODY: none */
    uint32_t late_node;          /* all of its ranks */
    uint32_t drain_rank;         /* begins in time, hands over late */
    uint32_t slow_from, slow_to; /* chunks that take longer; WAITS_NOBODY: any */
    uint32_t slow_server;
    uint64_t fault_ns;

    struct waits waits[NODES_MAX];
    struct waits_node of[NODES_MAX][NODES_MAX];
    struct waits_rank rank[NODES_MAX][RANKS_MAX];
    uint64_t opened_ns[NODES_MAX]; /* in which a collective was under way */
    uint64_t now_ns, sequence;
    uint64_t begin_ns[NODES_MAX];           /* of each node's step */
    uint64_t free_ns[NODES_MAX][NODES_MAX]; /* when a link has carried what it was given */
    /* Events of a step that a node's account is told, before they are put in order. */
    struct model_event {
        uint64_t ns;
        void (*tell)(struct waits *waits, uint32_t node, uint64_t sequence, uint64_t now_ns);
        uint32_t node;
    } events[NODES_MAX][4 * NODES_MAX];
    uint32_t event_count[NODES_MAX];
};

static struct model model_of(uint32_t nodes, uint32_t ranks)
{
    return (struct model){.nodes = nodes,
                          .ranks = ranks,
                          .compute_ns = 40 * MS,
                          .chunk_ns = 2 * MS,
                          .sum_ns = MS,
                          .jitter_ns = MS / 2,
                          .late_rank = WAITS_NOBODY,
                          .late_node = WAITS_NOBODY,
                          .drain_rank = WAITS_NOBODY,
                          .slow_from = WAITS_NOBODY,
                          .slow_to = WAITS_NOBODY,
                          .slow_server = WAITS_NOBODY,
                          .now_ns = 1000 * MS};
}

static uint64_t model_jitter(const struct model *model)
{
    uint64_t noise_ns = rand() % 4 == 0 ? (uint64_t)rand() % (model->noise_ns + 1) : 0;
    return (uint64_t)rand() % (model->jitter_ns + 1) + noise_ns;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The last of them, and when the last but one came. */
static uint32_t model_last(const uint64_t *ns, uint32_t count, uint64_t *before_ns)
{
    uint32_t last = 0;
    *before_ns = 0;
    for (uint32_t i = 1; i < count; i++)
        last = ns[i] > ns[last] ? i : last;
    for (uint32_t i = 0; i < count; i++)
        *before_ns = i != last ? later(*before_ns, ns[i]) : *before_ns;
    return last;
}

static void model_wait(struct wait *wait, uint64_t from_ns, uint64_t to_ns)
{
    wait_begin(wait, from_ns);
    wait_end(wait, to_ns);
}

/* When the node's own sum is there. */
static uint64_t model_node(struct model *model, uint32_t node)
{
    uint64_t start_ns[RANKS_MAX] = {0}, give_ns[RANKS_MAX] = {0}, before_ns;
    uint32_t ranks = model->ranks;
    for (uint32_t i = 0; i < ranks; i++) {
        uint32_t rank = node * ranks + i;
        start_ns[i] = model->begin_ns[node] + model->compute_ns + model_jitter(model);
        if (rank == model->late_rank || node == model->late_node)
            start_ns[i] += model->fault_ns;
        give_ns[i] = start_ns[i] + MS + (rank == model->drain_rank ? model->fault_ns : 0);
    }
    uint32_t last = model_last(start_ns, ranks, &before_ns);
    uint64_t all_ns = start_ns[last];
    if (ranks > 1)
        model_wait(&model->rank[node][last].start, before_ns, all_ns);
    waits_collective(&model->waits[node], 1);
    last = model_last(give_ns, ranks, &before_ns);
    if (ranks > 1 && give_ns[last] > all_ns)
        model_wait(&model->rank[node][last].give, later(before_ns, all_ns), give_ns[last]);
    return give_ns[last];
}

/* When it has come that is given to the link at a time. A slow link carries things in turns. */
static uint64_t model_come_ns(struct model *model, uint32_t from, uint32_t to, uint64_t ns)
{
    bool slow = (model->slow_from != WAITS_NOBODY || model->slow_to != WAITS_NOBODY) &&
                (model->slow_from == WAITS_NOBODY || model->slow_from == from) &&
                (model->slow_to == WAITS_NOBODY || model->slow_to == to);
    if (from == to)
        return ns;
    uint64_t *free_ns = &model->free_ns[from][to];
    if (slow)
        *free_ns = later(*free_ns, ns) + model->fault_ns;
    return later(*free_ns, ns) + model->chunk_ns + model_jitter(model);
}

/* --- what an account is told ------------------------------------------------------------------ */

static void tell_result_lacks(struct waits *it, uint32_t node, uint64_t sequence, uint64_t now_ns)
{
    (void)sequence;
    waits_result_lacks(it, node, now_ns);
}

static void tell_result_done(struct waits *it, uint32_t node, uint64_t sequence, uint64_t now_ns)
{
    (void)sequence;
    waits_result_done(it, node, now_ns);
}

static void tell_heard(struct waits *it, uint32_t node, uint64_t sequence, uint64_t now_ns)
{
    (void)sequence;
    waits_node_heard(it, node, now_ns);
    waits_node_done(it, node, now_ns);
}

static void tell_own_heard(struct waits *it, uint32_t node, uint64_t sequence, uint64_t now_ns)
{
    (void)node;
    (void)sequence;
    wait_begin(&it->gather, now_ns);
}

static void tell_all_heard(struct waits *it, uint32_t node, uint64_t sequence, uint64_t now_ns)
{
    (void)node;
    (void)sequence;
    wait_end(&it->gather, now_ns);
}

static void model_event(struct model *model, uint32_t at, uint64_t ns,
                        void (*tell)(struct waits *, uint32_t, uint64_t, uint64_t), uint32_t node)
{
    model->events[at][model->event_count[at]++] = (struct model_event){ns, tell, node};
}

static int model_compare(const void *a, const void *b)
{
    const struct model_event *x = a, *y = b;
    return (x->ns > y->ns) - (x->ns < y->ns);
}

static void model_tell(struct model *model, uint32_t at)
{
    qsort(model->events[at], model->event_count[at], sizeof(struct model_event), model_compare);
    for (uint32_t i = 0; i < model->event_count[at]; i++) {
        const struct model_event *it = &model->events[at][i];
        it->tell(&model->waits[at], it->node, model->sequence, it->ns);
    }
    model->event_count[at] = 0;
}

static uint64_t model_owner(struct model *model, uint32_t owner, const uint64_t *ready_ns)
{
    uint64_t heard_ns[NODES_MAX] = {0}, before_ns;
    struct waits *waits = &model->waits[owner];
    for (uint32_t i = 0; i < model->nodes; i++)
        heard_ns[i] = model_come_ns(model, i, owner, ready_ns[i]);
    uint32_t last = model_last(heard_ns, model->nodes, &before_ns);
    model_event(model, owner, before_ns, waits_node_lacks, last);
    model_event(model, owner, heard_ns[last], tell_heard, last);
    if (last != owner) {
        model_event(model, owner, heard_ns[owner], tell_own_heard, owner);
        model_event(model, owner, heard_ns[last], tell_all_heard, last);
    }
    waits_gathered(waits, model->sequence);
    uint64_t done_ns = heard_ns[last] + model->sum_ns + model_jitter(model) / 4;
    done_ns += owner == model->slow_server ? model->fault_ns : 0;
    model_wait(&waits->tasks, heard_ns[last], done_ns);
    return done_ns;
}

/* When the results of all owners have come to each node. */
static void model_results(struct model *model, const uint64_t *ready_ns, const uint64_t *done_ns)
{
    for (uint32_t from = 0; from < model->nodes; from++) {
        for (uint32_t to = 0; to < model->nodes; to++) {
            uint64_t came_ns = model_come_ns(model, from, to, done_ns[from]);
            model->begin_ns[to] = later(model->begin_ns[to], came_ns);
            if (from == to)
                continue;
            model_event(model, to, ready_ns[to], tell_result_lacks, from);
            model_event(model, to, came_ns, tell_result_done, from);
        }
    }
    for (uint32_t i = 0; i < model->nodes; i++) {
        model->opened_ns[i] += model->begin_ns[i] - ready_ns[i];
    }
}

/* Runs it for four seconds and asks. */
static struct verdict model_run(struct model *model)
{
    struct waits_figures reports[NODES_MAX];
    struct verdict verdict;
    for (uint32_t i = 0; i < model->nodes; i++)
        model->begin_ns[i] = model->now_ns;
    for (uint32_t i = 0; i < model->nodes; i++)
        waits_init(&model->waits[i], model->of[i], model->nodes, model->now_ns, 0);
    uint64_t end_ns = model->now_ns + 4000 * MS;
    for (; model->now_ns < end_ns; model->sequence++) {
        uint64_t ready_ns[NODES_MAX] = {0}, done_ns[NODES_MAX] = {0};
        for (uint32_t i = 0; i < model->nodes; i++)
            ready_ns[i] = model_node(model, i);
        for (uint32_t i = 0; i < model->nodes; i++)
            done_ns[i] = model->nodes > 1 ? model_owner(model, i, ready_ns) : ready_ns[0];
        model_results(model, ready_ns, done_ns);
        for (uint32_t i = 0; i < model->nodes; i++) {
            model_tell(model, i);
            model->now_ns = later(model->now_ns, model->begin_ns[i]);
        }
    }
    for (uint32_t i = 0; i < model->nodes; i++) {
        waits_tell(&model->waits[i], i, model->now_ns, 0, &reports[i]);
        reports[i].opened_us = (uint32_t)(model->opened_ns[i] / 1000);
        for (uint32_t k = 0; k < model->ranks; k++)
            waits_tell_rank(&model->rank[i][k], i * model->ranks + k, model->now_ns, &reports[i]);
    }
    verdict_find(&verdict, reports, model->nodes);
    return verdict;
}

/* The step measured with the fault taken away. */
static double model_step_ms(struct model model)
{
    model.fault_ns = 0;
    return model_run(&model).step_ms;
}

static void model_expect(const struct model *model, enum verdict_kind kind, uint32_t node,
                         uint32_t rank)
{
    struct model run = *model;
    struct verdict verdict = model_run(&run);
    ck_assert_msg(verdict.kind == kind, "%s, not %s", verdict_kind_name(verdict.kind),
                  verdict_kind_name(kind));
    ck_assert_uint_eq(verdict.node, node);
    ck_assert_uint_eq(verdict.rank, rank);
    double wanted_ms = model_step_ms(*model);
    bool low = verdict.without_ms<0.95 * wanted_ms, high = verdict.without_ms> 1.05 * wanted_ms;
    /* The figure for a link between two nodes lacks the results on the way back: it is not sure. */
    ck_assert_int_eq(verdict.sure, kind != VERDICT_LINK_SLOW || model->nodes > 2);
    ck_assert_msg(!low && !(high && verdict.sure), "%.2f ms without it, %.2f ms in truth",
                  verdict.without_ms, wanted_ms);
}

START_TEST(a_sound_job_waits_for_nobody)
{
    for (uint32_t nodes = 1; nodes <= NODES_MAX; nodes++) {
        srand(nodes);
        struct model model = model_of(nodes, 2);
        struct verdict verdict = model_run(&model);
        ck_assert_int_eq(verdict.kind, VERDICT_NOBODY);
        ck_assert_uint_eq(verdict.node, WAITS_NOBODY);
        ck_assert_double_eq(verdict.without_ms, verdict.step_ms);
        ck_assert_double_eq_tol(verdict.step_ms, nodes == 1 ? 41.3 : 47, 1.5);
    }
}
END_TEST

/* Others use the machine: of all that is late by chance, something is latest. A rank that was late
 * for much of four seconds may be named, seldom; a link never. */
START_TEST(a_sound_job_on_a_busy_machine_waits_for_nobody)
{
    uint32_t named = 0;
    for (uint32_t seed = 0; seed < 200; seed++) {
        srand(seed);
        struct model model = model_of(2 + seed % (NODES_MAX - 1), 1 + seed % RANKS_MAX);
        model.noise_ns = (2 + seed % 24) * MS;
        struct verdict verdict = model_run(&model);
        ck_assert_int_ne(verdict.kind, VERDICT_LINK_SLOW);
        ck_assert_int_ne(verdict.kind, VERDICT_RECEIVER_SLOW);
        named += verdict.kind != VERDICT_NOBODY;
    }
    ck_assert_uint_le(named, 2);
}
END_TEST

/* Seeded: which kind, who, how much, how many nodes and ranks. */
START_TEST(late_ranks_are_named)
{
    for (uint32_t seed = 0; seed < 60; seed++) {
        srand(seed);
        uint32_t nodes = 1 + seed % NODES_MAX, ranks = nodes == 1 ? 3 : 1 + seed % RANKS_MAX;
        struct model model = model_of(nodes, ranks);
        model.late_rank = (uint32_t)rand() % (nodes * ranks);
        model.fault_ns = (5 + (uint64_t)rand() % 40) * MS;
        model_expect(&model, VERDICT_RANK_LATE, model.late_rank / ranks, model.late_rank);
    }
}
END_TEST

START_TEST(ranks_that_drain_slowly_are_named)
{
    for (uint32_t seed = 0; seed < 40; seed++) {
        srand(seed);
        uint32_t nodes = 1 + seed % NODES_MAX, ranks = 2 + seed % 2;
        struct model model = model_of(nodes, ranks);
        model.drain_rank = (uint32_t)rand() % (nodes * ranks);
        model.fault_ns = (5 + (uint64_t)rand() % 40) * MS;
        model_expect(&model, VERDICT_RANK_DRAINS, model.drain_rank / ranks, model.drain_rank);
    }
}
END_TEST

START_TEST(a_late_node_is_none_of_its_ranks)
{
    for (uint32_t seed = 0; seed < 40; seed++) {
        srand(seed);
        uint32_t nodes = 2 + seed % (NODES_MAX - 1), ranks = 2 + seed % 2;
        struct model model = model_of(nodes, ranks);
        model.late_node = (uint32_t)rand() % nodes;
        model.fault_ns = (10 + (uint64_t)rand() % 40) * MS;
        model_expect(&model, VERDICT_NODE_LATE, model.late_node, WAITS_NOBODY);
    }
}
END_TEST

START_TEST(slow_links_are_named)
{
    for (uint32_t seed = 0; seed < 60; seed++) {
        srand(seed);
        uint32_t nodes = 3 + seed % (NODES_MAX - 2);
        struct model model = model_of(nodes, 1 + seed % 2);
        model.slow_from = (uint32_t)rand() % nodes;
        model.fault_ns = (8 + (uint64_t)rand() % 40) * MS;
        model_expect(&model, VERDICT_LINK_SLOW, model.slow_from, WAITS_NOBODY);
        struct verdict verdict = model_run(&model);
        ck_assert_uint_eq(verdict.to, WAITS_NOBODY);
    }
}
END_TEST

START_TEST(slow_receivers_are_named)
{
    for (uint32_t seed = 0; seed < 60; seed++) {
        srand(seed);
        uint32_t nodes = 3 + seed % (NODES_MAX - 2);
        struct model model = model_of(nodes, 1 + seed % 2);
        model.slow_to = (uint32_t)rand() % nodes;
        model.fault_ns = (8 + (uint64_t)rand() % 40) * MS;
        model_expect(&model, VERDICT_RECEIVER_SLOW, model.slow_to, WAITS_NOBODY);
    }
}
END_TEST

/* From one node to one other; of two nodes it is all that there is. */
START_TEST(one_slow_link_is_named)
{
    for (uint32_t seed = 0; seed < 60; seed++) {
        srand(seed);
        uint32_t nodes = 2 + seed % (NODES_MAX - 1);
        struct model model = model_of(nodes, 1 + seed % 2);
        model.slow_from = (uint32_t)rand() % nodes;
        model.slow_to = (model.slow_from + 1 + (uint32_t)rand() % (nodes - 1)) % nodes;
        model.fault_ns = (8 + (uint64_t)rand() % 40) * MS;
        model_expect(&model, VERDICT_LINK_SLOW, model.slow_from, WAITS_NOBODY);
        struct verdict verdict = model_run(&model);
        ck_assert_uint_eq(verdict.to, model.slow_to);
    }
}
END_TEST

START_TEST(slow_servers_are_named)
{
    for (uint32_t seed = 0; seed < 60; seed++) {
        srand(seed);
        uint32_t nodes = 2 + seed % (NODES_MAX - 1);
        struct model model = model_of(nodes, 1 + seed % 2);
        model.slow_server = (uint32_t)rand() % nodes;
        model.fault_ns = (12 + (uint64_t)rand() % 40) * MS;
        model_expect(&model, VERDICT_SERVER_SLOW, model.slow_server, WAITS_NOBODY);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("verdict");
    TCase *cases = tcase_create("verdict");
    tcase_add_test(cases, a_sound_job_waits_for_nobody);
    tcase_add_test(cases, a_sound_job_on_a_busy_machine_waits_for_nobody);
    tcase_add_test(cases, late_ranks_are_named);
    tcase_add_test(cases, ranks_that_drain_slowly_are_named);
    tcase_add_test(cases, a_late_node_is_none_of_its_ranks);
    tcase_add_test(cases, slow_links_are_named);
    tcase_add_test(cases, slow_receivers_are_named);
    tcase_add_test(cases, one_slow_link_is_named);
    tcase_add_test(cases, slow_servers_are_named);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
