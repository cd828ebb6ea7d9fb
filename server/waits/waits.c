#include "server/waits/waits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_US 1000u
#define HALF_NS (2 * UINT64_C(1000000000))
/* A half that has fewer collectives goes on, up to a minute. */
#define HALF_COLLECTIVES 4u
#define HALF_MOST_NS (60 * UINT64_C(1000000000))

/* Halves of which fewer are no past. */
#define PAST_LEAST 3u

/* --- one wait --------------------------------------------------------------------------------- */

/* Clocks of two rounds may meet in one event: time does not run backwards here. */
static uint64_t waits_passed(uint64_t since_ns, uint64_t now_ns)
{
    return now_ns > since_ns ? now_ns - since_ns : 0;
}

static void wait_settle(struct wait *wait, uint64_t now_ns)
{
    if (wait->open > 0)
        wait->ns[0] += waits_passed(wait->since_ns, now_ns);
    wait->since_ns = now_ns;
}

void wait_begin(struct wait *wait, uint64_t now_ns)
{
    if (wait->open++ == 0)
        wait->since_ns = now_ns;
    wait->times[0]++;
}

void wait_end(struct wait *wait, uint64_t now_ns)
{
    assert(wait->open > 0);
    if (--wait->open == 0)
        wait->ns[0] += waits_passed(wait->since_ns, now_ns);
}

static void wait_turn(struct wait *wait, uint64_t now_ns)
{
    wait_settle(wait, now_ns);
    wait->ns[1] = wait->ns[0];
    wait->times[1] = wait->times[0];
    wait->ns[0] = 0;
    wait->times[0] = 0;
}

static uint32_t waits_us(uint64_t ns)
{
    uint64_t us = ns / NS_PER_US;
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

/* Return the wait's microseconds; a wait that has not ended counts until now. */
static uint32_t wait_us(const struct wait *wait, uint64_t now_ns)
{
    uint64_t open_ns = wait->open > 0 ? waits_passed(wait->since_ns, now_ns) : 0;
    return waits_us(wait->ns[0] + wait->ns[1] + open_ns);
}

/* --- events ----------------------------------------------------------------------------------- */

void waits_init(struct waits *waits, struct waits_node *nodes, uint32_t node_count, uint64_t now_ns,
                uint64_t still_ns)
{
    *waits = (struct waits){.began_ns = {now_ns, now_ns},
                            .still_ns = {still_ns, still_ns},
                            .nodes = nodes,
                            .node_count = node_count};
}

void waits_collective(struct waits *waits, uint32_t ask)
{
    waits->collectives[0]++;
    waits->asks[waits->asked++ % WAITS_ASKS] = ask;
}

/* A few are under way at once: those of which chunks come in turns are told apart by their place.
 */
void waits_gathered(struct waits *waits, uint64_t sequence)
{
    uint64_t *owned = &waits->owned[sequence % WAITS_OWNED];
    waits->gathered[0] += *owned != sequence + 1;
    *owned = sequence + 1;
}

void waits_node_lacks(struct waits *waits, uint32_t node, uint64_t sequence, uint64_t now_ns)
{
    struct waits_node *it = &waits->nodes[node];
    /* If anything has come since the wait began, the node has begun. */
    struct wait *wait = it->flow.open > 0 ? &it->flow : &it->start;
    wait_begin(wait, now_ns);
    wait->times[0]--; /* of collectives, not chunks */
    wait_begin(&it->all, now_ns);
    if (it->counted != sequence + 1)
        it->start.times[0]++;
    it->counted = sequence + 1;
}

void waits_node_heard(struct waits *waits, uint32_t node, uint64_t now_ns)
{
    struct waits_node *it = &waits->nodes[node];
    if (it->start.open == 0)
        return;
    wait_settle(&it->start, now_ns);
    wait_settle(&it->flow, now_ns);
    it->flow.open += it->start.open;
    it->start.open = 0;
}

void waits_node_done(struct waits *waits, uint32_t node, uint64_t now_ns)
{
    struct waits_node *it = &waits->nodes[node];
    wait_end(it->flow.open > 0 ? &it->flow : &it->start, now_ns);
    wait_end(&it->all, now_ns);
}

/* The one node that owes results may have become another. */
static void waits_owing_moved(struct waits *waits, uint64_t now_ns)
{
    uint32_t alone = waits->owing == 1 ? waits->owing_xor + 1 : 0;
    if (alone == waits->owing_alone)
        return;
    if (waits->owing_alone > 0)
        wait_end(&waits->nodes[waits->owing_alone - 1].all, now_ns);
    if (alone > 0)
        wait_begin(&waits->nodes[alone - 1].all, now_ns);
    waits->owing_alone = alone;
}

void waits_result_lacks(struct waits *waits, uint32_t node, uint64_t now_ns)
{
    if (waits->nodes[node].results++ > 0)
        return;
    waits->owing++;
    waits->owing_xor ^= node;
    waits_owing_moved(waits, now_ns);
}

void waits_result_done(struct waits *waits, uint32_t node, uint64_t now_ns)
{
    assert(waits->nodes[node].results > 0);
    if (--waits->nodes[node].results > 0)
        return;
    waits->owing--;
    waits->owing_xor ^= node;
    waits_owing_moved(waits, now_ns);
}

/* --- the window ------------------------------------------------------------------------------- */

bool waits_half_over(const struct waits *waits, uint64_t now_ns)
{
    uint64_t passed_ns = waits_passed(waits->began_ns[0], now_ns);
    return passed_ns >= HALF_NS &&
           (waits->collectives[0] >= HALF_COLLECTIVES || passed_ns >= HALF_MOST_NS);
}

void waits_turn(struct waits *waits, uint64_t now_ns, uint64_t still_ns)
{
    waits->began_ns[1] = waits->began_ns[0];
    waits->began_ns[0] = now_ns;
    waits->still_ns[1] = waits->still_ns[0];
    waits->still_ns[0] = still_ns;
    waits->collectives[1] = waits->collectives[0];
    waits->collectives[0] = 0;
    waits->gathered[1] = waits->gathered[0];
    waits->gathered[0] = 0;
    wait_turn(&waits->tasks, now_ns);
    wait_turn(&waits->gather, now_ns);
    for (uint32_t i = 0; i < waits->node_count; i++) {
        wait_turn(&waits->nodes[i].start, now_ns);
        wait_turn(&waits->nodes[i].flow, now_ns);
        wait_turn(&waits->nodes[i].all, now_ns);
    }
}

/* After how many the last asks begin again; 0: they do not. */
static uint32_t waits_step(const struct waits *waits)
{
    uint32_t count = waits->asked < WAITS_ASKS ? waits->asked : WAITS_ASKS;
    for (uint32_t step = 1; step <= count / 2; step++) {
        uint32_t same = 0;
        while (same + step < count &&
               waits->asks[(waits->asked - 1 - same) % WAITS_ASKS] ==
                   waits->asks[(waits->asked - 1 - same - step) % WAITS_ASKS])
            same++;
        if (same + step == count)
            return step;
    }
    return 0;
}

/* Return a number for the asks that repeat, the same wherever among them the job is; 0: nothing
 * repeats. */
static uint32_t waits_pattern(const struct waits *waits)
{
    uint32_t step = waits_step(waits), pattern = step;
    for (uint32_t i = 1; i <= step; i++)
        pattern += waits->asks[(waits->asked - i) % WAITS_ASKS];
    return pattern;
}

void waits_remember(struct waits *waits, uint64_t opened_ns)
{
    uint32_t pattern = waits_pattern(waits);
    if (pattern != waits->past_pattern)
        waits->past_count = 0;
    waits->past_pattern = pattern;
    if (pattern != 0 && waits->collectives[1] >= HALF_COLLECTIVES)
        waits->past_us[waits->past_count++ % WAITS_PAST] =
            waits_us(opened_ns / waits->collectives[1]);
}

void waits_rank_turn(struct waits_rank *rank, uint64_t now_ns)
{
    wait_turn(&rank->start, now_ns);
    wait_turn(&rank->give, now_ns);
}

/* --- what is told ----------------------------------------------------------------------------- */

static int waits_compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* A quarter of what is remembered was quicker: the rest may be of bad times. */
static uint32_t waits_sound_us(const struct waits *waits)
{
    uint32_t past_us[WAITS_PAST];
    uint32_t count = waits->past_count < WAITS_PAST ? waits->past_count : WAITS_PAST;
    if (count < PAST_LEAST)
        return 0;
    memcpy(past_us, waits->past_us, count * sizeof(past_us[0]));
    qsort(past_us, count, sizeof(past_us[0]), waits_compare);
    return past_us[count / 4];
}

static void waits_tell_node(const struct waits_node *it, uint32_t node, uint64_t now_ns,
                            struct waits_figures *figures)
{
    uint32_t all_us = wait_us(&it->all, now_ns);
    uint32_t at = WAITS_NODES;
    while (at > 0 &&
           (figures->node[at - 1].node == WAITS_NOBODY || figures->node[at - 1].all_us < all_us))
        at--;
    if (at == WAITS_NODES || all_us == 0)
        return;
    memmove(&figures->node[at + 1], &figures->node[at],
            (WAITS_NODES - 1 - at) * sizeof(figures->node[0]));
    figures->node[at].node = node;
    figures->node[at].start_us = wait_us(&it->start, now_ns);
    figures->node[at].flow_us = wait_us(&it->flow, now_ns);
    figures->node[at].all_us = all_us;
    figures->node[at].times = it->start.times[0] + it->start.times[1];
}

void waits_tell(const struct waits *waits, uint32_t self, uint64_t now_ns, uint64_t still_ns,
                struct waits_figures *figures)
{
    *figures = (struct waits_figures){
        .window_us = waits_us(waits_passed(waits->began_ns[1], now_ns)),
        .collectives = waits->collectives[0] + waits->collectives[1],
        .step = waits_step(waits),
        .gathered = waits->gathered[0] + waits->gathered[1],
        .tasks_us = wait_us(&waits->tasks, now_ns),
        .gather_us = wait_us(&waits->gather, now_ns),
        .sound_us = waits_sound_us(waits),
        .still_us = waits_us(waits_passed(waits->still_ns[1], still_ns)),
        .own = self,
    };
    for (uint32_t i = 0; i < WAITS_RANKS; i++)
        figures->rank[i].rank = WAITS_NOBODY;
    for (uint32_t i = 0; i < WAITS_NODES; i++)
        figures->node[i].node = WAITS_NOBODY;
    for (uint32_t i = 0; i < waits->node_count; i++) {
        if (i != self)
            waits_tell_node(&waits->nodes[i], i, now_ns, figures);
    }
    if (self < waits->node_count) {
        const struct waits_node *own = &waits->nodes[self];
        figures->self_us = wait_us(&own->start, now_ns) + wait_us(&own->flow, now_ns);
        figures->self_times = own->start.times[0] + own->start.times[1];
    }
}

void waits_tell_rank(const struct waits_rank *it, uint32_t rank, uint64_t now_ns,
                     struct waits_figures *figures)
{
    uint32_t start_us = wait_us(&it->start, now_ns), give_us = wait_us(&it->give, now_ns);
    uint32_t at = WAITS_RANKS;
    figures->ranks++;
    while (at > 0 && (figures->rank[at - 1].rank == WAITS_NOBODY ||
                      (uint64_t)figures->rank[at - 1].start_us + figures->rank[at - 1].give_us <
                          (uint64_t)start_us + give_us))
        at--;
    if (at == WAITS_RANKS)
        return;
    memmove(&figures->rank[at + 1], &figures->rank[at],
            (WAITS_RANKS - 1 - at) * sizeof(figures->rank[0]));
    figures->rank[at].rank = rank;
    figures->rank[at].start_us = start_us;
    figures->rank[at].give_us = give_us;
    figures->rank[at].times = it->start.times[0] + it->start.times[1];
    figures->rank[at].gives = it->give.times[0] + it->give.times[1];
}

/* --- for a message ---------------------------------------------------------------------------- */

_Static_assert(sizeof(struct waits_figures) == WAITS_WORDS * sizeof(uint32_t), "numbers alone");

void waits_pack(const struct waits_figures *figures, uint32_t words[WAITS_WORDS])
{
    memcpy(words, figures, sizeof(*figures));
}

bool waits_unpack(struct waits_figures *figures, const uint32_t *words, uint32_t count)
{
    if (count != WAITS_WORDS)
        return false;
    memcpy(figures, words, sizeof(*figures));
    return true;
}
