#include "server/waits/verdict.h"

#include <assert.h>
#include <stdlib.h>

#include "server/waits/court_links.h"

#define US_PER_S 1e6
#define MS_PER_S 1e3
/* Sums differ more, by the nature of nodes. */
#define LEAST_SUM_PART 0.15
#define LEAST_COLLECTIVES 4u
/* Below CLEAR_PART one is named only if its part is CLEAR_TIMES the next one's. From there on a
 * rank, or a node that is late, is named anyway; a node that is blamed needs CLEAR_PART_TIMES the
 * next node's part, and from MUCH_PART on MUCH_TIMES. */
#define CLEAR_PART 0.10
#define CLEAR_TIMES 3.0
#define CLEAR_PART_TIMES 2.0
#define MUCH_PART 0.25
#define MUCH_TIMES 1.3
/* Parts of what the others wait for a node. BUSY: if the daemon's sums and its standing still are
 * more than twice those of the others, and the surplus explains so much, the daemon does not get
 * on. MOST: the same, if they are merely more. ONE_LINK: if the node waits so much for one other
 * alone, that link is the reason. */
#define BUSY 0.3
#define ONE_LINK 0.7
#define MOST 0.6
/* The past is believed if it says at most so many times what was counted, and at least one of so
 * many parts of it. */
#define PAST_TIMES 2.0

/* --- ranks ------------------------------------------------------------------------------------ */

/* For how long one of the told ranks of a node was what the job lacked: another node may be as
 * late. */
static double court_rank_part(const struct court *court, size_t report, uint32_t us, bool start)
{
    const struct waits_figures *it = &court->reports[report];
    if (it->ranks == 1 && start)
        return court->several ? court->late[report] : 0;
    double part = it->ranks == 1 && !court->several ? 0 : court_part(it, us);
    return court->several && part > court->late[report] ? court->late[report] : part;
}

/* The two that are most late to begin, or to hand over. Where they are alike, chance decides who is
 * behind, and neither is to blame. */
struct court_ranks {
    struct {
        double part;
        size_t report;
        uint32_t rank, times;
    } most, next;
};

static struct court_ranks court_latest_ranks(const struct court *court, bool start)
{
    struct court_ranks ranks = {.most = {.part = -1}, .next = {.part = 0}};
    for (size_t i = 0; i < court->count; i++) {
        const struct waits_figures *it = &court->reports[i];
        for (uint32_t k = 0; k < WAITS_RANKS && it->rank[k].rank != WAITS_NOBODY; k++) {
            uint32_t us = start ? it->rank[k].start_us : it->rank[k].give_us;
            double part = court_rank_part(court, i, us, start);
            uint32_t times = start ? it->rank[k].times : it->rank[k].gives;
            if (start && it->ranks == 1)
                times = court->late_times[i];
            if (part > ranks.most.part) {
                ranks.next = ranks.most;
                ranks.most.part = part;
                ranks.most.report = i;
                ranks.most.rank = it->rank[k].rank;
                ranks.most.times = times;
            } else if (part > ranks.next.part) {
                ranks.next.part = part;
            }
        }
    }
    return ranks;
}

/* From where on one that is next to another is named. */
static double court_least(double next)
{
    double least = CLEAR_TIMES * next;
    if (least < LEAST_PART)
        return LEAST_PART;
    return least < CLEAR_PART ? least : CLEAR_PART;
}

static void court_hear_ranks(struct court *court, bool start)
{
    struct court_ranks ranks = court_latest_ranks(court, start);
    if (ranks.most.part > 0)
        court_accuse(court, ranks.most.part, court_least(ranks.next.part),
                     (struct verdict){.kind = start ? VERDICT_RANK_LATE : VERDICT_RANK_DRAINS,
                                      .rank = ranks.most.rank,
                                      .node = court->reports[ranks.most.report].own,
                                      .to = WAITS_NOBODY,
                                      .times = ranks.most.times,
                                      .sure = true});
}

/* Late as a whole: what no rank of it explains. */
static void court_hear_nodes(struct court *court)
{
    size_t latest = 0;
    double next = 0;
    for (size_t i = 1; i < court->count; i++) {
        if (court->late[i] > court->late[latest]) {
            next = court->late[latest];
            latest = i;
        } else if (court->late[i] > next) {
            next = court->late[i];
        }
    }
    const struct waits_figures *it = &court->reports[latest];
    double ranks_part = 0;
    for (uint32_t i = 0; i < WAITS_RANKS && it->rank[i].rank != WAITS_NOBODY; i++)
        ranks_part += court_part(it, (double)it->rank[i].start_us + it->rank[i].give_us);
    if (court->several && it->ranks > 1 && court->late[latest] > 2 * ranks_part)
        court_accuse(court, court->late[latest], court_least(next),
                     (struct verdict){.kind = VERDICT_NODE_LATE,
                                      .rank = WAITS_NOBODY,
                                      .node = it->own,
                                      .to = WAITS_NOBODY,
                                      .times = court->late_times[latest],
                                      .sure = true});
}
/* --- servers ---------------------------------------------------------------------------------- */

/* The busiest alone can be it. */
static void court_hear_servers(struct court *court)
{
    const struct waits_figures *busiest = NULL;
    for (size_t i = 0; i < court->count; i++) {
        const struct waits_figures *it = &court->reports[i];
        if (it->gathered > 0 && (!busiest || court_busy(it) > court_busy(busiest)))
            busiest = it;
    }
    if (busiest)
        court_accuse(court, court_server(court, busiest, COURT_BUSY_TIMES), LEAST_SUM_PART,
                     (struct verdict){.kind = VERDICT_SERVER_SLOW,
                                      .rank = WAITS_NOBODY,
                                      .node = busiest->own,
                                      .to = WAITS_NOBODY,
                                      .sure = true});
}
/* --- the blamed one --------------------------------------------------------------------------- */

/* The lower median of how long others had their own part of something and not the rest. */
static double court_gather_median(const struct court *court, const struct waits_figures *blamed)
{
    size_t count = 0;
    double *parts = calloc(court->count, sizeof(*parts)), median = 0;
    for (size_t i = 0; parts && i < court->count; i++) {
        const struct waits_figures *it = &court->reports[i];
        if (it != blamed && court_sees_all(court, it))
            parts[count++] = court_part(it, it->gather_us);
    }
    median = court_median(parts, count);
    free(parts);
    return median;
}

/* From where on the blamed one is named: it has to stand out from the next one. */
static bool court_is_clear(const struct court *court)
{
    double times = CLEAR_TIMES;
    if (court->blame >= CLEAR_PART)
        times = court->blame >= MUCH_PART ? MUCH_TIMES : CLEAR_PART_TIMES;
    return court->blame >= LEAST_PART && court->blame >= times * court->next_blame;
}

/* Whether it is what comes to the node that is slow. First a node's data goes over a link and then
 * its results. If the link from a node is slow, its ranks have the others' results early and begin
 * early: it waits for the others' parts more than they do. If the one to a node is slow, it begins
 * late, and they wait more. A node without ranks begins nothing, and waits for what comes slowly.
 */
static bool court_is_inward(const struct court *court, const struct waits_figures *blamed)
{
    double own = court_part(blamed, blamed->gather_us), others = court_gather_median(court, blamed);
    return blamed->ranks > 0 ? own < others : own >= court->blame / 2;
}

/* The node for which the blamed one waits, if it is one alone: then one link is slow. */
static uint32_t court_one_sender(const struct court *court, const struct waits_figures *blamed)
{
    for (uint32_t i = 0; i < WAITS_NODES && blamed->node[i].node != WAITS_NOBODY; i++) {
        if (court_part(blamed, blamed->node[i].all_us) >= ONE_LINK * court->blame)
            return blamed->node[i].node;
    }
    return WAITS_NOBODY;
}

/* How often others waited for its data: the most that one of them says. */
static uint32_t court_seen_times(const struct court *court, uint32_t node)
{
    uint32_t most = 0;
    for (size_t i = 0; i < court->count; i++) {
        uint32_t times;
        court_seen(court, &court->reports[i], node, &times);
        most = times > most ? times : most;
    }
    return most;
}

static void court_hear_ways(struct court *court, const struct waits_figures *blamed)
{
    bool inward = court_is_inward(court, blamed);
    uint32_t sender = inward ? court_one_sender(court, blamed) : WAITS_NOBODY;
    bool link = !inward || sender != WAITS_NOBODY;
    struct verdict accused = {.kind = link ? VERDICT_LINK_SLOW : VERDICT_RECEIVER_SLOW,
                              .rank = WAITS_NOBODY,
                              .node = sender != WAITS_NOBODY ? sender : blamed->own,
                              .to = sender != WAITS_NOBODY ? blamed->own : WAITS_NOBODY,
                              .times = court_seen_times(court, blamed->own)};
    if (court->collectives >= LEAST_LINK_COLLECTIVES)
        court_accuse(court, court->blame, LEAST_LINK_PART, accused);
}

static bool court_explains(const struct court *court, double part, double of_blame)
{
    return part >= LEAST_PART && part >= of_blame * court->blame;
}

/* A daemon that does not get on has its hands full, or stands still. Where daemons share
 * processors all of them do at times: then it has to be most of what is waited for. Such a daemon
 * sees late what its ranks have begun: for longer than for others nothing is under way there, and
 * yet the ranks were in time for all that it had. */
static bool court_is_server(const struct court *court, const struct waits_figures *it)
{
    if (it->gathered > 0 &&
        (court_explains(court, court_server(court, it, COURT_BUSY_TIMES), BUSY) ||
         court_explains(court, court_server(court, it, 1), MOST)))
        return true;
    return it->ranks > 0 && court_idle(it) - court->idle >= court->blame / 2 &&
           court->late[court->blamed] < court->blame / 2;
}

/* Why the others wait for it: its daemon does not get on, its ranks begin late, or its links. */
static void court_hear_blamed(struct court *court)
{
    const struct waits_figures *it = &court->reports[court->blamed];
    if (!court_is_clear(court))
        return;
    if (court_is_server(court, it)) {
        court_accuse(court, court->blame, 0,
                     (struct verdict){.kind = VERDICT_SERVER_SLOW,
                                      .rank = WAITS_NOBODY,
                                      .node = it->own,
                                      .to = WAITS_NOBODY});
    } else if (court->late[court->blamed] >= court->blame / 2) {
        court_hear_ranks(court, true);
        court_hear_ranks(court, false);
        court_hear_nodes(court);
    } else {
        court_hear_ways(court, it);
    }
}
/* --- without it ------------------------------------------------------------------------------- */

/* Lower medians of the nodes with ranks, for each collective: for how long none was under way, and
 * for how long one was in good times. False: nobody remembers any. */
static bool court_remember(const struct court *court, double *idle_us, double *sound_us)
{
    double *idles = calloc(2 * court->count, sizeof(*idles)), *sounds = idles + court->count;
    size_t count = 0;
    for (size_t i = 0; idles && i < court->count; i++) {
        const struct waits_figures *it = &court->reports[i];
        if (it->ranks == 0 || it->sound_us == 0 || it->collectives == 0)
            continue;
        idles[count] = court_idle(it) * it->window_us / it->collectives;
        sounds[count++] = it->sound_us;
    }
    *idle_us = court_median(idles, count);
    *sound_us = court_median(sounds, count);
    free(idles);
    return count >= 2;
}

/* Correct the part with the job's own past. The time for which others waited for the culprit alone
 * contains what they did meanwhile, and would have to do then, so the past knows better what a step
 * takes without it. The past is believed only where it does not differ too much, since a culprit
 * may have been there all along. */
static void court_ask_past(struct court *court)
{
    double idle_us, sound_us, collective_us = 1 / court->per_us;
    if (court->part == 0 || !court->several || !court_remember(court, &idle_us, &sound_us))
        return;
    double part = 1 - (idle_us + sound_us) / collective_us;
    if (part < court->part / PAST_TIMES || part > court->part * PAST_TIMES)
        return;
    court->part = part;
    court->verdict->sure = true;
}

/* --- the verdict ------------------------------------------------------------------------------ */

/* The report by which steps are counted: of a node with ranks, the one with most collectives. */
static const struct waits_figures *court_measure(const struct court *court)
{
    const struct waits_figures *best = &court->reports[0];
    for (size_t i = 1; i < court->count; i++) {
        if (court->reports[i].collectives > best->collectives)
            best = &court->reports[i];
    }
    return best;
}

/* Without memory nobody is accused. */
static void court_hear_all(struct court *court)
{
    court->late = calloc(court->count, sizeof(*court->late));
    court->late_times = calloc(court->count, sizeof(*court->late_times));
    if (court->late && court->late_times) {
        court_find_blame(court);
        court_find_late(court);
        if (court->blame > 0) {
            court_hear_blamed(court);
        } else {
            court_hear_ranks(court, true);
            court_hear_ranks(court, false);
            court_hear_nodes(court);
            court_hear_servers(court);
            court_hear_links(court);
        }
    }
    free(court->late);
    free(court->late_times);
}

void verdict_find(struct verdict *verdict, const struct waits_figures *reports, size_t count)
{
    assert(count > 0);
    struct court court = {.reports = reports, .count = count, .verdict = verdict};
    const struct waits_figures *measure = court_measure(&court);
    *verdict = (struct verdict){.kind = VERDICT_UNKNOWN,
                                .rank = WAITS_NOBODY,
                                .node = WAITS_NOBODY,
                                .to = WAITS_NOBODY,
                                .sure = true,
                                .collectives = measure->collectives,
                                .step = measure->step > 0 ? measure->step : 1,
                                .window_s = measure->window_us / US_PER_S};
    if (measure->collectives < LEAST_COLLECTIVES || measure->window_us == 0)
        return;
    verdict->kind = VERDICT_NOBODY;
    court.collectives = measure->collectives;
    court.per_us = (double)measure->collectives / measure->window_us;
    for (size_t i = 0; i < count; i++)
        court.several |= reports[i].gathered > 0;
    court_hear_all(&court);
    verdict->sure |= court.blame > 0;
    court_ask_past(&court);
    if (verdict->times > verdict->collectives) /* of one that has not ended */
        verdict->times = verdict->collectives;
    if (court.part > 1)
        court.part = 1;
    verdict->step_ms = verdict->window_s * MS_PER_S * verdict->step / measure->collectives;
    verdict->lost_ms = verdict->step_ms * court.part;
    verdict->without_ms = verdict->step_ms - verdict->lost_ms;
}

const char *verdict_kind_name(enum verdict_kind kind)
{
    static const char *const names[] = {
        [VERDICT_UNKNOWN] = "unknown",
        [VERDICT_NOBODY] = "nobody",
        [VERDICT_RANK_LATE] = "rank late",
        [VERDICT_RANK_DRAINS] = "rank drains slowly",
        [VERDICT_NODE_LATE] = "node late",
        [VERDICT_LINK_SLOW] = "link slow",
        [VERDICT_RECEIVER_SLOW] = "receiver slow",
        [VERDICT_SERVER_SLOW] = "server slow",
    };
    return names[kind];
}
