/* The order of the loop, and everybody's share of a turn of it. Vital events come first, then those
 * of trusted daemons, then all others; nobody has more than a share of the rest before the others
 * have had theirs. Therefore a heartbeat waits for one callback at most, and a user for one share
 * of each other. */
#include <stdlib.h>

#include "server/control/ground/control_internal.h"

/* After so long what is more urgent is looked for. */
#define SLICE_US 1000

/* Share of a user in a turn: some requests of the usual size, and one of the largest. */
#define USER_NS 2000000u
#define USER_BYTES ((size_t)128 << 10)
/* All authenticated daemons together: one of them may have much to say about a large job. */
#define PEERS_NS 8000000u
#define PEERS_BYTES ((size_t)4 << 20)
/* When all users together have had so much, a connection has less at a time. Whoever may map
 * numbers of users (subuid) is as many as he likes, and has as many shares. */
#define CROWD_NS 50000000u
#define CROWDED_NS 100000u
/* Lines with lists that a user may be in the middle of. */
#define USER_LISTS_MAX 16u

/* All streams that had to wait have had somebody else's turn. They come in the order in which they
 * began to wait. */
static void turn_begin(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control *control = argument;
    struct control_stream *stream, *next;
    control->turn++;
    control->turn_spent_ns = 0;
    DL_FOREACH_SAFE2(control->turn_waiters, stream, next, turn_next)
    {
        DL_DELETE2(control->turn_waiters, stream, turn_prev, turn_next);
        stream->turn_waits = false;
        event_active(stream->turn_event, EV_TIMEOUT, 1);
    }
}

int control_turn_init(struct control *control)
{
    static const struct timeval slice = {0, SLICE_US};
    struct event_config *config = event_config_new();
    if (config && event_config_set_max_dispatch_interval(config, &slice, -1, CONTROL_HIGH) == 0)
        control->base = event_base_new_with_config(config);
    if (config)
        event_config_free(config);
    if (!control->base || event_base_priority_init(control->base, CONTROL_PRIORITIES) < 0)
        return ERR_MEMORY;
    control->turn = 1;
    control->strangers = (struct control_share){
        .limit_ns = USER_NS, .limit_bytes = USER_BYTES, .limit_lists = 0, .streams = 1};
    control->trusted = (struct control_share){
        .limit_ns = PEERS_NS, .limit_bytes = PEERS_BYTES, .limit_lists = UINT32_MAX, .streams = 1};
    control->turn_event = evtimer_new(control->base, turn_begin, control);
    return control->turn_event ? 0 : ERR_MEMORY;
}

void control_turn_clear(struct control *control)
{
    if (control->turn_event)
        event_free(control->turn_event);
    if (control->base)
        event_base_free(control->base);
    control->turn_event = NULL;
    control->base = NULL;
}

void control_turn_wait(struct control_stream *stream)
{
    static const struct timeval at_once = {0, 0};
    struct control *control = stream->control;
    if (!control->turn_waiters)
        evtimer_add(control->turn_event, &at_once);
    stream->turn_waits = true;
    DL_APPEND2(control->turn_waiters, stream, turn_prev, turn_next);
}

void control_turn_forget(struct control_stream *stream)
{
    if (stream->turn_waits)
        DL_DELETE2(stream->control->turn_waiters, stream, turn_prev, turn_next);
    stream->turn_waits = false;
}

struct control_share *control_share_of_user(struct control *control, uint32_t uid)
{
    struct control_share *share;
    HASH_FIND(hh, control->shares, &uid, sizeof(uid), share);
    if (!share) {
        share = calloc(1, sizeof(*share));
        if (!share)
            return NULL;
        share->uid = uid;
        share->limit_ns = USER_NS;
        share->limit_bytes = USER_BYTES;
        share->limit_lists = USER_LISTS_MAX;
        HASH_ADD(hh, control->shares, uid, sizeof(share->uid), share);
        if (!HASH_IS_ADDED(share)) {
            free(share);
            return NULL;
        }
    }
    share->streams++;
    return share;
}

void control_share_leave(struct control *control, struct control_share *share)
{
    if (!share || --share->streams > 0)
        return;
    HASH_DEL(control->shares, share);
    free(share);
}

uint32_t control_share_streams(const struct control *control, uint32_t uid)
{
    struct control_share *share;
    HASH_FIND(hh, control->shares, &uid, sizeof(uid), share);
    return share ? share->streams : 0;
}

bool control_share_is_spent(const struct control *control, const struct control_share *share)
{
    return share->turn == control->turn &&
           (share->spent_ns >= share->limit_ns || share->spent_bytes >= share->limit_bytes);
}

uint64_t control_turn_limit_ns(const struct control *control)
{
    return control->turn_spent_ns < CROWD_NS ? CONTROL_TURN_NS : CROWDED_NS;
}

void control_share_spend(struct control *control, struct control_share *share, uint64_t ns,
                         size_t bytes)
{
    if (share != &control->trusted)
        control->turn_spent_ns += ns;
    if (share->turn != control->turn) {
        share->turn = control->turn;
        share->spent_ns = 0;
        share->spent_bytes = 0;
    }
    share->spent_ns += ns;
    share->spent_bytes += bytes;
}
