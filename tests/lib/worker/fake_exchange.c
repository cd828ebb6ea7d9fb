#include "tests/lib/worker/fake_exchange.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/format/route.h"
#include "common/format/wire.h"
#include "common/reduce/dtype.h"
#include "common/reduce/reduce.h"

struct collective {
    uint32_t group;
    uint64_t sequence;
    uint32_t block; /* common/format/route.h */
    struct route route;
    struct arena_submission asked[FAKE_RANKS_MAX]; /* by place in the group; type 0: not yet */
    uint64_t *offsets[FAKE_RANKS_MAX];             /* staged: of each chunk; 0: not yet */
    uint32_t given[FAKE_RANKS_MAX];
    struct layout layout; /* once the first has asked */
    struct layout_rule block_rule;
    uint8_t *done; /* [chunk] */
    uint32_t done_count;
    bool lost;    /* one that has asked is gone */
    bool refused; /* a send and its receive that do not fit */
    struct collective *prev, *next;
};

struct group {
    bool open, failed;
    uint32_t ranks[FAKE_RANKS_MAX];
    uint32_t rank_count;
    uint32_t weights[FAKE_SERVERS_MAX];
    struct layout_rule rule;
    uint64_t next_sequence[FAKE_RANKS_MAX]; /* by place: submissions come in order, and so do */
    uint32_t last_block[FAKE_RANKS_MAX];    /* the blocks of one */
    uint64_t completed, stable;             /* behind the last that is, and what was told */
};

struct fake_exchange {
    struct fake_exchange_io io;
    struct arena arenas[FAKE_RANKS_MAX];
    bool attached[FAKE_RANKS_MAX];
    struct group groups[FAKE_GROUPS_MAX];
    struct collective *collectives;
    uint64_t random, completed, staged_chunks;
    bool hold, keeps;
};

static uint64_t draw(struct fake_exchange *exchange, uint64_t below)
{
    exchange->random ^= exchange->random << 13;
    exchange->random ^= exchange->random >> 7;
    exchange->random ^= exchange->random << 17;
    return exchange->random % below;
}

struct fake_exchange *fake_exchange_create(uint64_t seed, const struct fake_exchange_io *io)
{
    struct fake_exchange *exchange = calloc(1, sizeof(*exchange));
    exchange->random = seed * 0x9e3779b97f4a7c15ull + 1;
    if (io)
        exchange->io = *io;
    return exchange;
}

static void free_collective(struct fake_exchange *exchange, struct collective *collective)
{
    DL_DELETE(exchange->collectives, collective);
    for (unsigned i = 0; i < FAKE_RANKS_MAX; i++)
        free(collective->offsets[i]);
    free(collective->done);
    free(collective);
}

void fake_exchange_destroy(struct fake_exchange *exchange)
{
    while (exchange->collectives)
        free_collective(exchange, exchange->collectives);
    free(exchange);
}

void fake_exchange_restart(struct fake_exchange *exchange)
{
    while (exchange->collectives)
        free_collective(exchange, exchange->collectives);
    memset(exchange->groups, 0, sizeof(exchange->groups));
    memset(exchange->attached, 0, sizeof(exchange->attached));
}

void fake_exchange_keep(struct fake_exchange *exchange)
{
    exchange->keeps = true;
}

void fake_exchange_attach(struct fake_exchange *exchange, uint32_t rank, const struct arena *arena)
{
    exchange->arenas[rank] = *arena;
    exchange->attached[rank] = true;
}

void fake_exchange_detach(struct fake_exchange *exchange, uint32_t rank)
{
    struct collective *collective;
    exchange->attached[rank] = false;
    DL_FOREACH(exchange->collectives, collective)
    {
        const struct group *group = &exchange->groups[collective->group];
        for (uint32_t i = 0; i < group->rank_count; i++)
            collective->lost |= group->ranks[i] == rank && collective->asked[i].type;
    }
}

void fake_exchange_open_group(struct fake_exchange *exchange, uint32_t number,
                              const uint32_t *ranks, uint32_t rank_count,
                              const struct layout_rule *rule)
{
    ck_assert_uint_lt(number, FAKE_GROUPS_MAX);
    struct group *group = &exchange->groups[number];
    memset(group, 0, sizeof(*group));
    group->open = true;
    group->rank_count = rank_count;
    memcpy(group->ranks, ranks, rank_count * sizeof(*ranks));
    group->rule = *rule;
    ck_assert_uint_le(rule->servers, FAKE_SERVERS_MAX);
    memcpy(group->weights, rule->weights, rule->servers * sizeof(*rule->weights));
    group->rule.weights = group->weights;
}

void fake_exchange_fail_group(struct fake_exchange *exchange, uint32_t group)
{
    exchange->groups[group].failed = true;
}

void fake_exchange_hold(struct fake_exchange *exchange, bool hold)
{
    exchange->hold = hold;
}

static uint32_t place_of(const struct group *group, uint32_t rank)
{
    for (uint32_t i = 0; i < group->rank_count; i++)
        if (group->ranks[i] == rank)
            return i;
    ck_abort_msg("rank %u is not in the group", rank);
    return 0;
}

static uint32_t submission_identity(const struct arena_submission *submission)
{
    return submission->flags & ARENA_FLAG_IDENTITY ? submission->identity : 0;
}

static uint32_t submission_block(const struct arena_submission *submission)
{
    return submission->flags & ARENA_FLAG_IDENTITY ? 0 : submission->block;
}

static struct collective *find_collective(struct fake_exchange *exchange,
                                          const struct arena_submission *submission)
{
    struct collective *collective;
    DL_FOREACH(exchange->collectives, collective)
    {
        if (collective->group == submission->group &&
            collective->sequence == submission->sequence &&
            collective->block == submission_block(submission))
            return collective;
    }
    collective = calloc(1, sizeof(*collective));
    collective->group = submission->group;
    collective->sequence = submission->sequence;
    collective->block = submission_block(submission);
    DL_APPEND(exchange->collectives, collective);
    return collective;
}

static bool same_ask(const struct arena_submission *a, const struct arena_submission *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->count == b->count &&
           a->root == b->root && a->priority == b->priority &&
           submission_identity(a) == submission_identity(b);
}

/* The collective itself first, then its blocks that the rank takes part in, in order. */
static void check_order(struct group *group, uint32_t place,
                        const struct arena_submission *submission)
{
    uint32_t block = submission_block(submission);
    if (submission->kind == COLLECTIVE_SEND) { /* in no order */
        ck_assert_uint_ne(submission->sequence & WIRE_SEND_SEQUENCE, 0);
        ck_assert_uint_eq(submission->flags & ARENA_FLAG_STAGED, 0);
        return;
    }
    if (block == 0) {
        ck_assert_uint_eq(submission->sequence, group->next_sequence[place]++);
    } else {
        uint32_t expected = route_next_block(submission->kind, submission->root, place,
                                             group->rank_count, group->last_block[place] + 1);
        ck_assert_uint_eq(submission->sequence + 1, group->next_sequence[place]);
        ck_assert_uint_eq(block, expected);
    }
    group->last_block[place] = block;
}

/* Set up the collective by what the first rank that asks says. */
static void fake_set_up(struct collective *collective, const struct group *group,
                        const struct arena_submission *submission)
{
    bool blocks = route_in_blocks(submission->kind), whole = submission_block(submission) == 0;
    collective->block_rule = layout_rule_single(&group->rule, submission->kind != COLLECTIVE_SEND);
    collective->route = route_find(submission->kind, submission->root, submission_block(submission),
                                   group->rank_count);
    ck_assert_int_eq(layout_init(&collective->layout,
                                 whole ? &group->rule : &collective->block_rule,
                                 submission->sequence, submission_identity(submission),
                                 blocks && whole ? 0 : submission->count,
                                 (uint32_t)dtype_bytes(submission->dtype)),
                     0);
    ck_assert_uint_gt(collective->layout.chunks, 0);
    collective->done = calloc(collective->layout.chunks + 1u, 1);
}

static void push(struct fake_exchange *exchange, uint32_t rank,
                 const struct arena_completion *completion)
{
    struct arena *arena = &exchange->arenas[rank];
    ck_assert(arena_push_completion(arena, completion));
    if (arena_worker_needs_doorbell(arena) && exchange->io.ring)
        exchange->io.ring(exchange->io.context, rank);
}

/* A send and its receive: what goes across is what is sent, or nothing. */
static void fake_meet(struct collective *collective, const struct group *group)
{
    const struct arena_submission *sent = &collective->asked[collective->route.from];
    const struct arena_submission *wanted = &collective->asked[collective->route.to];
    if (!sent->type || !wanted->type)
        return;
    bool up_to = wanted->op == WIRE_TAKE_UP_TO;
    collective->refused = sent->dtype != wanted->dtype ||
                          (up_to ? sent->count > wanted->count : sent->count != wanted->count);
    collective->block_rule = layout_rule_single(&group->rule, false);
    ck_assert_int_eq(layout_init(&collective->layout, &collective->block_rule, sent->sequence, 0,
                                 collective->refused ? 0 : sent->count,
                                 (uint32_t)dtype_bytes(sent->dtype)),
                     0);
}

/* The end of a send or receive, for the rank at this place. */
static void fake_report_transfer(struct fake_exchange *exchange, const struct group *group,
                                 const struct collective *collective, uint32_t place)
{
    bool sends = collective->route.from == place;
    const struct arena_submission *other =
        &collective->asked[sends ? collective->route.to : collective->route.from];
    push(exchange, group->ranks[place],
         &(struct arena_completion){.type = ARENA_REQUEST_DONE,
                                    .request = collective->asked[place].request,
                                    .chunk = collective->refused ? ARENA_REFUSED : 0,
                                    .dtype = collective->refused ? other->dtype : 0,
                                    .count = other->count});
}

static void take_submit(struct fake_exchange *exchange, struct group *group, uint32_t place,
                        const struct arena_submission *submission)
{
    const struct arena *arena = &exchange->arenas[group->ranks[place]];
    check_order(group, place, submission);
    ck_assert_uint_lt(submission->kind, COLLECTIVE_KIND_COUNT);
    ck_assert(reduce_op_allows(submission->op, submission->dtype));
    struct collective *collective = find_collective(exchange, submission);
    if (!collective->done)
        fake_set_up(collective, group, submission);
    if (!(submission->flags & ARENA_FLAG_STAGED)) {
        uint64_t bytes = submission->kind == COLLECTIVE_SEND
                             ? submission->count * dtype_bytes(submission->dtype)
                             : collective->layout.count * collective->layout.element_bytes;
        ck_assert(arena_range_valid(arena, submission->in_offset, bytes));
        ck_assert(arena_range_valid(arena, submission->out_offset, bytes));
    }
    collective->asked[place] = *submission;
    collective->offsets[place] =
        calloc(collective->layout.chunks, sizeof(*collective->offsets[place]));
    if (submission->kind == COLLECTIVE_SEND) {
        fake_meet(collective, group);
        return;
    }
    for (uint32_t i = 0; i < group->rank_count; i++) {
        if (collective->asked[i].type && !same_ask(&collective->asked[i], submission)) {
            group->failed = true;
            ck_assert_ptr_nonnull(exchange->io.disagree);
            exchange->io.disagree(exchange->io.context, submission->group, submission->sequence);
            return;
        }
    }
}

static void take_chunk(struct fake_exchange *exchange, struct group *group, uint32_t place,
                       const struct arena_submission *submission)
{
    const struct arena *arena = &exchange->arenas[group->ranks[place]];
    struct collective *collective = find_collective(exchange, submission);
    const struct arena_submission *asked = &collective->asked[place];
    ck_assert_uint_eq(asked->type, ARENA_SUBMIT);
    ck_assert_uint_eq(asked->request, submission->request);
    ck_assert_uint_ne(asked->flags & ARENA_FLAG_STAGED, 0);
    if (collective->layout.count != asked->count)
        return; /* the ranks disagree; the group has failed */
    ck_assert_uint_lt(submission->chunk, collective->layout.chunks);
    ck_assert_uint_eq(submission->chunk, collective->given[place]++);
    ck_assert(arena_range_valid(arena, submission->in_offset, group->rule.chunk_bytes));
    collective->offsets[place][submission->chunk] = submission->in_offset;
    exchange->staged_chunks++;
}

static bool fake_read_rank(struct fake_exchange *exchange, uint32_t rank)
{
    struct arena_submission submission;
    bool any = false;
    int got;
    while ((got = arena_pop_submission(&exchange->arenas[rank], &submission)) > 0) {
        any = true;
        ck_assert_uint_lt(submission.group, FAKE_GROUPS_MAX);
        struct group *group = &exchange->groups[submission.group];
        ck_assert(group->open);
        if (group->failed || submission.type == ARENA_NUMBER) /* it keeps nothing for a replay */
            continue;
        uint32_t place = place_of(group, rank);
        if (submission.type == ARENA_SUBMIT)
            take_submit(exchange, group, place, &submission);
        else
            take_chunk(exchange, group, place, &submission);
    }
    ck_assert_int_eq(got, 0);
    return any;
}

static void report(struct fake_exchange *exchange, uint32_t rank, unsigned type, uint64_t request,
                   uint32_t chunk, uint64_t offset)
{
    push(exchange, rank,
         &(struct arena_completion){
             .type = (uint8_t)type, .request = request, .chunk = chunk, .offset = offset});
}

void fake_exchange_tell_stable(struct fake_exchange *exchange, uint32_t rank, uint32_t group,
                               uint64_t sequence)
{
    push(exchange, rank,
         &(struct arena_completion){.type = ARENA_STABLE, .group = group, .sequence = sequence});
}

static bool chunk_ready(const struct group *group, const struct collective *collective, uint32_t c)
{
    for (uint32_t i = 0; i < group->rank_count; i++) {
        const struct arena_submission *asked = &collective->asked[i];
        if (!route_takes_part(&collective->route, i))
            continue;
        if (!asked->type)
            return false;
        if ((asked->flags & ARENA_FLAG_STAGED) && !collective->offsets[i][c])
            return false;
    }
    return !collective->lost && !collective->done[c];
}

static void reduce_chunk(struct fake_exchange *exchange, const struct group *group,
                         const struct collective *collective, uint32_t c)
{
    const void *in[FAKE_RANKS_MAX] = {0};
    void *out[FAKE_RANKS_MAX] = {0};
    struct layout_chunk chunk = layout_chunk(&collective->layout, c);
    for (uint32_t i = 0; i < group->rank_count; i++) {
        const struct arena_submission *asked = &collective->asked[i];
        if (!route_takes_part(&collective->route, i))
            continue;
        uint8_t *base = exchange->arenas[group->ranks[i]].base;
        uint64_t start = chunk.first * collective->layout.element_bytes;
        bool staged = asked->flags & ARENA_FLAG_STAGED;
        in[i] = base + (staged ? collective->offsets[i][c] : asked->in_offset + start);
        out[i] = base + (staged ? collective->offsets[i][c] : asked->out_offset + start);
    }
    const struct route *route = &collective->route;
    if (chunk.count == 0 || route->from == ROUTE_NONE)
        return;
    if (route->from != ROUTE_ALL) {
        for (uint32_t i = 0; i < group->rank_count; i++)
            if (route_receives(route, i) && out[i]) /* it is: as it takes part */
                memcpy(out[i], in[route->from], chunk.count * collective->layout.element_bytes);
        return;
    }
    const struct arena_submission *asked = &collective->asked[0];
    bool one = route->to != ROUTE_ALL;
    struct reduction reduction = {
        .dtype = asked->dtype,
        .op = asked->op,
        .divisor = group->rank_count,
        .inputs = group->rank_count,
        .outputs = one ? 1 : group->rank_count,
        .count = chunk.count,
        .in = in,
        .out = one ? &out[route->to] : out,
    };
    reduce_run(reduce_select(REDUCE_ISA_SCALAR), &reduction);
}

static bool any_ready(const struct fake_exchange *exchange, const struct collective *collective)
{
    const struct group *group = &exchange->groups[collective->group];
    for (uint32_t c = 0; c < collective->layout.chunks; c++)
        if (chunk_ready(group, collective, c))
            return true;
    return false;
}

/* All ranks have asked for what comes before one that is complete. */
static void fake_tell_group(struct fake_exchange *exchange, uint32_t number)
{
    struct group *group = &exchange->groups[number];
    const struct collective *collective;
    uint64_t stable = group->completed;
    DL_FOREACH(exchange->collectives, collective)
    {
        if (collective->group == number && collective->sequence < stable)
            stable = collective->sequence;
    }
    for (uint32_t i = 0; i < group->rank_count && stable > group->stable; i++)
        fake_exchange_tell_stable(exchange, group->ranks[i], number, stable);
    group->stable = stable;
}

/* Complete some of the chunks that can be, and the whole when they are all done. */
static void advance(struct fake_exchange *exchange, struct collective *collective)
{
    struct group *group = &exchange->groups[collective->group];
    for (uint32_t c = 0; c < collective->layout.chunks; c++) {
        if (!chunk_ready(group, collective, c) || draw(exchange, 3) == 0)
            continue;
        reduce_chunk(exchange, group, collective, c);
        collective->done[c] = 1;
        collective->done_count++;
        for (uint32_t i = 0; i < group->rank_count; i++)
            if (collective->asked[i].flags & ARENA_FLAG_STAGED)
                report(exchange, group->ranks[i], ARENA_CHUNK_DONE, collective->asked[i].request, c,
                       collective->offsets[i][c]);
    }
    if (collective->done_count < collective->layout.chunks)
        return;
    for (uint32_t i = 0; i < group->rank_count; i++) {
        if (!route_takes_part(&collective->route, i))
            continue;
        if (collective->asked[i].kind == COLLECTIVE_SEND)
            fake_report_transfer(exchange, group, collective, i);
        else
            report(exchange, group->ranks[i], ARENA_REQUEST_DONE, collective->asked[i].request, 0,
                   0);
    }
    exchange->completed++;
    uint64_t sequence = collective->sequence;
    uint32_t number = collective->group;
    free_collective(exchange, collective);
    if (!exchange->keeps || sequence & WIRE_SEND_SEQUENCE)
        return;
    if (sequence >= group->completed)
        group->completed = sequence + 1;
    fake_tell_group(exchange, number);
}

bool fake_exchange_step(struct fake_exchange *exchange)
{
    bool moved = false;
    for (uint32_t rank = 0; rank < FAKE_RANKS_MAX; rank++)
        if (exchange->attached[rank])
            moved |= fake_read_rank(exchange, rank);
    if (exchange->hold)
        return moved;
    struct collective *collective, *next;
    DL_FOREACH_SAFE(exchange->collectives, collective, next)
    {
        if (exchange->groups[collective->group].failed || !any_ready(exchange, collective))
            continue;
        moved = true;
        if (draw(exchange, 4) > 0)
            advance(exchange, collective);
    }
    return moved;
}

bool fake_exchange_prepare_sleep(struct fake_exchange *exchange)
{
    for (uint32_t rank = 0; rank < FAKE_RANKS_MAX; rank++) {
        if (exchange->attached[rank] && arena_daemon_prepare_sleep(&exchange->arenas[rank])) {
            fake_exchange_cancel_sleep(exchange);
            return false;
        }
    }
    return true;
}

void fake_exchange_cancel_sleep(struct fake_exchange *exchange)
{
    for (uint32_t rank = 0; rank < FAKE_RANKS_MAX; rank++)
        if (exchange->attached[rank])
            arena_daemon_cancel_sleep(&exchange->arenas[rank]);
}

uint64_t fake_exchange_completed(const struct fake_exchange *exchange)
{
    return exchange->completed;
}

uint64_t fake_exchange_staged_chunks(const struct fake_exchange *exchange)
{
    return exchange->staged_chunks;
}
