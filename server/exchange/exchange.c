/* Where calls from outside enter: each is passed to the layer below that it concerns. */
#include "server/exchange/exchange.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/shown.h"
#include "common/transport/transport.h"
#include "server/exchange/exchange_group.h"
#include "server/exchange/exchange_link.h"
#include "server/exchange/ground/archive.h"
#include "server/exchange/ground/delivery.h"
#include "server/exchange/ground/post.h"
#include "server/exchange/ground/recorder.h"
#include "server/exchange/ground/segments.h"
#include "server/exchange/ground/session.h"
#include "server/exchange/ground/waiting.h"
#include "server/exchange/model/ask.h"
#include "server/exchange/model/order.h"
#include "server/exchange/model/roster.h"
#include "server/exchange/model/share.h"
#include "server/exchange/node/agreement.h"
#include "server/exchange/node/any_receive.h"
#include "server/exchange/node/chunk.h"
#include "server/exchange/node/collective.h"
#include "server/exchange/node/issue.h"
#include "server/exchange/node/probe.h"
#include "server/exchange/node/replay.h"
#include "server/exchange/node/stability.h"
#include "server/exchange/node/transfer.h"
#include "server/exchange/owner/slot.h"
#include "server/exchange/owner/slots.h"

int exchange_create(struct exchange **exchange, const struct exchange_options *options,
                    struct error *error)
{
    struct exchange *made = calloc(1, sizeof(*made));
    struct exchange_peer *peers = calloc(options->node_count, sizeof(*peers));
    uint64_t *stirred = calloc(BITS_WORDS(options->node_count), sizeof(*stirred));
    if (!made || !peers || !stirred) {
        free(made);
        free(peers);
        free(stirred);
        return error_set(error, ERR_MEMORY, "no memory for %" PRIu32 " peers", options->node_count);
    }
    if (options->keep_steps > 0 && buffer_pool_charge(options->pool, options->keep_bytes, error)) {
        free(made);
        free(peers);
        free(stirred);
        return ERR_MEMORY;
    }
    made->options = *options;
    made->archived.limit = made->archiving.limit = options->keep_bytes;
    made->archiving.own_user = options->own_user;
    made->peers = peers;
    made->stirred = stirred;
    slab_init(&made->sends, sizeof(struct exchange_send));
    slab_init(&made->kept, sizeof(struct session_message));
    *exchange = made;
    return 0;
}

void exchange_destroy(struct exchange *exchange)
{
    if (!exchange)
        return;
    exchange_close_jobs(exchange);
    exchange_run(exchange);
    assert(!exchange->jobs);
    for (uint32_t i = 0; i < exchange->options.node_count; i++) {
        struct exchange_peer *peer = &exchange->peers[i];
        session_end(exchange, i);
        assert(!peer->session.waiting && peer->session.promised == 0);
        assert(peer->posted == 0 && peer->held == 0 && !peer->link.under_way);
    }
    assert(exchange->sends.in_use == 0 && exchange->kept.in_use == 0);
    archives_clear(exchange);
    quota_clear(&exchange->promised);
    if (exchange->options.keep_steps > 0)
        buffer_pool_uncharge(exchange->options.pool, exchange->options.keep_bytes);
    slab_clear(&exchange->sends);
    slab_clear(&exchange->kept);
    free(exchange->stirred);
    free(exchange->peers);
    free(exchange);
}

void exchange_totals(const struct exchange *exchange, struct exchange_totals *totals)
{
    *totals = (struct exchange_totals){
        .bytes_reduced = exchange->bytes_reduced,
        .collectives = exchange->collectives,
        .met_collectives = exchange->met_collectives,
        .dropped_messages = exchange->dropped_messages,
        .slots = exchange->slots,
        .archived_bytes = exchange->archived.used,
        .archived_count = exchange->archived_count,
        .workers = exchange->workers,
    };
    for (const struct exchange_job *job = exchange->jobs; job; job = job->next)
        totals->jobs++;
}

static struct exchange_group *exchange_find(const struct exchange *exchange, uint64_t job_id,
                                            uint32_t id)
{
    const struct exchange_job *job = exchange_job_find(exchange, job_id);
    return job ? exchange_group_find(job, id) : NULL;
}

int exchange_segment_open(struct exchange *exchange, uint64_t job, uint32_t id,
                          struct exchange_segment *segment, struct error *error)
{
    struct exchange_group *group = exchange_find(exchange, job, id);
    if (!group || group->failed)
        return error_set(error, ERR_STATE, "group %" PRIu32 " is not open, or has failed", id);
    return segments_open(group, segment, error);
}

void exchange_segment_close(struct exchange *exchange, uint64_t job, uint32_t id, uint32_t number)
{
    struct exchange_group *group = exchange_find(exchange, job, id);
    if (group)
        segments_close(group, number);
}

/* --- what workers submit ---------------------------------------------------------------------- */

int exchange_submit(struct exchange *exchange, struct exchange_worker *worker,
                    const struct arena_submission *submission, uint64_t now_ns, struct error *error)
{
    struct exchange_job *job = worker->job;
    exchange->now_ns = now_ns;
    if (worker->detached || job->failed)
        return 0;
    if (submission->type == ARENA_COPIED) /* its group may be closed by now */
        return recorder_copied(worker, submission, error);
    struct exchange_group *group = exchange_group_find(job, submission->group);
    uint32_t local = group ? group_local_index(group, worker->rank) : NO_INDEX;
    if (local == NO_INDEX)
        return error_set(error, ERR_PROTOCOL, "group %" PRIu32 " is not one of rank %" PRIu32,
                         submission->group, worker->rank);
    if (group->failed) {
        /* A chunk was on its way while the group failed: the rank waits for its memory. */
        if (submission->type == ARENA_CHUNK)
            worker_give_back(worker, submission->request, submission->chunk, submission->in_offset);
        return 0;
    }
    switch (submission->type) {
    case ARENA_SUBMIT:
        return submission->kind == COLLECTIVE_SEND
                   ? transfer_submit(group, local, worker, submission, error)
                   : collective_submit(group, local, worker, submission, error);
    case ARENA_CHUNK:
        return collective_hand_over(group, local, worker, submission, error);
    case ARENA_NUMBER:
        return group->id == 0
                   ? archive_number(job, submission->sequence, submission->count, error)
                   : error_set(error, ERR_PROTOCOL, "numbers of group %" PRIu32, group->id);
    default:
        return error_set(error, ERR_PROTOCOL, "submission type %u does not exist",
                         submission->type);
    }
}

/* --- what peers send -------------------------------------------------------------------------- */

void exchange_peer_up(struct exchange *exchange, uint32_t node, uint64_t receive_token,
                      uint64_t send_token)
{
    struct exchange_peer *peer = &exchange->peers[node];
    peer->up = true;
    peer->receive_token = receive_token;
    peer->send_token = send_token;
    link_begin(exchange, node);
    receive_replenish(exchange, node);
}

bool exchange_peer_session(struct exchange *exchange, uint32_t node, bool resume)
{
    struct exchange_session *session = &exchange->peers[node].session;
    if (resume)
        return session_may_go_on(exchange, node);
    if (session->on)
        sends_end_session(exchange, node);
    if (exchange->options.recovery && !exchange->options.shared_receives)
        session_begin(exchange, node);
    return true;
}

int exchange_peer_ready(struct exchange *exchange, uint32_t node, struct error *error)
{
    return link_ready(exchange, node, error);
}

bool exchange_peer_away(struct exchange *exchange, uint32_t node)
{
    exchange->peers[node].up = false;
    session_suspend(exchange, node);
    return session_may_go_on(exchange, node);
}

bool exchange_peer_is_barren(const struct exchange *exchange, uint32_t node)
{
    return exchange->peers[node].session.on && !session_may_go_on(exchange, node);
}

void exchange_peer_down(struct exchange *exchange, uint32_t node)
{
    exchange->peers[node].up = false;
    if (exchange->peers[node].session.on)
        sends_end_session(exchange, node);
}

static bool message_token_is_of(const struct exchange_peer *peer, uint64_t token)
{
    return peer->up && peer->receive_token == token;
}

static int message_sender(const struct exchange *exchange, uint32_t node, uint64_t token,
                          uint32_t *from)
{
    if (node != TRANSPORT_NO_PEER)
        return message_token_is_of(&exchange->peers[node], token) ? 0 : ERR_PROTOCOL;
    for (uint32_t i = 0; i < exchange->options.node_count; i++) {
        if (message_token_is_of(&exchange->peers[i], token)) {
            *from = i;
            return 0;
        }
    }
    return ERR_PROTOCOL;
}

static int message_contribution(struct exchange_group *group, uint32_t from,
                                const struct wire_header *header, struct buffer *buffer,
                                struct error *error)
{
    uint32_t node_index = group_node_index(group, from);
    if (node_index == NO_INDEX || group->owners.self == NO_INDEX || group->members.single)
        return error_set(error, ERR_PROTOCOL,
                         "a contribution to group %" PRIu32
                         ", in which it has no part or this node no shard",
                         group->id);
    if (replay_is(group, &header->ask))
        return replay_answer(group, node_index, header, buffer, error);
    int result = slot_check(group, node_index, header, error);
    if (result != 0)
        return result;
    if (ask_is_transfer(&header->ask))
        transfer_check_source(group, header->sequence, &header->ask);
    return group->failed ? 0 : slot_contribute_remote(group, node_index, header, buffer, error);
}

static int message_error(struct exchange_group *group, uint32_t from,
                         const struct wire_header *header, const struct buffer *buffer,
                         struct error *error)
{
    if (group_owner_index(group, from) == NO_INDEX)
        return error_set(error, ERR_PROTOCOL,
                         "an error for group %" PRIu32 ", in which it owns no shard", group->id);
    char text[ERROR_TEXT_BYTES], shown[ERROR_TEXT_BYTES];
    uint32_t bytes = header->payload_bytes < sizeof(text) - 1 ? header->payload_bytes
                                                              : (uint32_t)sizeof(text) - 1;
    memcpy(text, buffer->data + WIRE_HEADER_BYTES, bytes);
    text[bytes] = '\0';
    shown_copy(shown, sizeof(shown), text);
    exchange_group_fail(group, header->status, shown);
    return 0;
}

static int message_dispatch(struct exchange *exchange, uint32_t from,
                            const struct wire_header *header, struct buffer *buffer,
                            struct error *error)
{
    link_heard(exchange, from, header->type);
    int taken = link_take(exchange, from, header, error);
    if (taken != 0)
        return taken < 0 ? taken : 0;
    if (link_is_sign(header->type))
        return link_check(header, error);
    struct exchange_job *job = exchange_job_find(exchange, header->job);
    struct exchange_group *group = job ? exchange_group_find(job, header->group) : NULL;
    if (!group || group->failed || header->generation != job->generation) {
        exchange->dropped_messages++;
        return 0;
    }
    switch (header->type) {
    case WIRE_CONTRIBUTION:
    case WIRE_DISAGREE:
        return message_contribution(group, from, header, buffer, error);
    case WIRE_RESULT:
        return chunk_result(group, from, header, buffer, error);
    case WIRE_PROBE:
    case WIRE_READY:
    case WIRE_GONE:
        return probe_message(group, from, header, error);
    case WIRE_HELD:
    case WIRE_STABLE:
        return stability_message(group, from, header, error);
    case WIRE_DELIVERED:
        return transfer_delivered(group, from, header, error);
    default:
        return message_error(group, from, header, buffer, error);
    }
}

int exchange_receive(struct exchange *exchange, uint32_t node, struct buffer *buffer,
                     uint32_t bytes, uint64_t now_ns, uint32_t *from, struct error *error)
{
    uint32_t posted_for = buffer->peer;
    struct exchange_peer *account = receive_account(exchange, posted_for);
    assert(account->posted > 0);
    account->posted--;
    account->held++;
    exchange->now_ns = now_ns;
    *from = node;
    struct wire_header header = {0};
    int result = bytes > buffer->capacity
                     ? error_set(error, ERR_PROTOCOL, "a message of %" PRIu32 " bytes", bytes)
                     : wire_decode_header(buffer->data, bytes, &header, error);
    if (result == 0 && message_sender(exchange, node, header.token, from) != 0) {
        result = error_set(error, ERR_PROTOCOL, "a message has a token that was not given out");
        /* A datagram may be of a connection before this one, for which its sender is not to pay. */
        if (exchange->options.shared_receives)
            *from = TRANSPORT_NO_PEER;
    }
    if (result == 0)
        result = message_dispatch(exchange, *from, &header, buffer, error);
    /* Whoever keeps the buffer holds it. */
    receive_release(exchange, buffer);
    /* A transport takes fewer receives than several groups allow; now it has room for one. */
    receive_replenish(exchange, posted_for);
    return result;
}

void exchange_receive_returned(struct exchange *exchange, uint32_t node, struct buffer *buffer)
{
    struct exchange_peer *account = receive_account(exchange, node);
    assert(account->posted > 0);
    account->posted--;
    buffer_release(buffer);
    receive_replenish(exchange, node); /* one that was spoilt, or of a connection before this one */
}

void exchange_abandon_receives(struct exchange *exchange)
{
    for (uint32_t i = 0; i < exchange->options.node_count; i++) {
        buffer_pool_forget(exchange->options.pool, exchange->peers[i].posted);
        exchange->peers[i].posted = 0;
    }
}

/* --- what comes back -------------------------------------------------------------------------- */

/* A send or task of a group that had failed before is no longer pending. One that fails of what
 * comes back is freed by exchange_run. */
static void exchange_settle(struct exchange_group *group)
{
    if (group->pending == 0)
        exchange_job_settle(group->job);
}

void exchange_send_failed(struct exchange *exchange, struct exchange_send *send, int code)
{
    char text[ERROR_TEXT_BYTES];
    if (!send->group)
        return; /* if it is the link, silence will say so */
    snprintf(text, sizeof(text), "a message to node %s could not be sent: %s",
             exchange->options.node_names[send->node], error_name(code));
    exchange_group_fail(send->group, code, text);
}

void exchange_sent(struct exchange *exchange, struct exchange_send *send)
{
    struct exchange_group *group = send->group;
    if (send->number_alone) {
        send_over(exchange, send);
        return;
    }
    if (!group) {
        link_sent(exchange, send);
        return;
    }
    bool had_failed = group->failed;
    send_over(exchange, send);
    if (had_failed)
        exchange_settle(group);
}

void exchange_reduced(struct exchange *exchange, struct reduce_task *task)
{
    (void)exchange;
    struct exchange_group *group = task->group;
    bool had_failed = group->failed;
    task_over(task);
    if (had_failed)
        exchange_settle(group);
}

/* --- running ---------------------------------------------------------------------------------- */

static void exchange_pump(struct exchange_group *group)
{
    if (!group->failed)
        collectives_check_departed(group);
    if (!group->failed)
        agreement_report(group);
    if (!group->failed)
        any_receives_ask(group);
    if (!group->failed)
        group_issue(group);
    if (!group->failed)
        group_issue_transfers(group);
    if (!group->failed)
        stability_run(group);
    if (group->failed)
        exchange_job_settle(group->job);
}

static void exchange_return_deferred(struct exchange *exchange)
{
    while (exchange->deferred) {
        struct exchange_send *send = exchange->deferred;
        exchange->deferred = send->next;
        exchange_sent(exchange, send);
    }
}

bool exchange_run_some(struct exchange *exchange, uint32_t groups)
{
    exchange_return_deferred(exchange);
    while (exchange->dirty && groups-- > 0)
        exchange_pump(share_take_group(exchange));
    return exchange->dirty || exchange->deferred;
}

void exchange_run(struct exchange *exchange)
{
    while (exchange_run_some(exchange, UINT32_MAX))
        ;
}

void exchange_time(struct exchange *exchange, uint64_t now_ns, uint64_t still_ns)
{
    exchange->now_ns = now_ns;
    exchange->still_ns += still_ns;
}

bool exchange_idle(const struct exchange *exchange)
{
    for (const struct exchange_job *job = exchange->jobs; job; job = job->next) {
        for (const struct exchange_group *group = job->groups; group; group = group->next) {
            if (!group->failed && exchange_group_busy(group))
                return false;
        }
    }
    return true;
}

/* --- late ranks ------------------------------------------------------------------------------- */

/* with_nodes: also the nodes that this one waits for as an owner. False: no memory to say it. */
static bool exchange_report_late(const struct exchange_group *group, uint64_t sequence,
                                 bool with_nodes)
{
    const struct exchange_io *io = &group->job->exchange->options.io;
    const struct members *members = &group->members;
    uint32_t *ranks = calloc(members->local_count + 1, sizeof(*ranks));
    uint32_t *nodes = calloc(members->node_count + 1, sizeof(*nodes));
    if (!ranks || !nodes) {
        free(ranks);
        free(nodes);
        return false;
    }
    struct engine_event *event = engine_event_create(ENGINE_LATE);
    event->job = group->job->id;
    event->group = group->id;
    event->sequence = sequence;
    event->met = segments_met(group);
    event->ranks = ranks;
    event->nodes = nodes;
    event->rank_count = collectives_missing_ranks(group, sequence, event->ranks);
    if (with_nodes)
        event->node_count = slots_missing_nodes(group, sequence, event->nodes);
    io->event(io->context, event);
    return true;
}

static void exchange_tick_group(struct exchange_group *group, uint64_t now_ns)
{
    uint64_t late_ns = group->job->exchange->options.late_ns;
    uint64_t sequence = 0;
    uint64_t first_ns = 0;
    bool waits = slots_oldest_waiting(group, &sequence, &first_ns);
    const struct collective *oldest = group->order->oldest;
    if (oldest && collective_waits(oldest) && (!waits || oldest->sequence <= sequence)) {
        waits = true;
        sequence = oldest->sequence;
        first_ns = oldest->first_ns;
    }
    if (!waits || now_ns < first_ns + late_ns || group->late_reported == sequence + 1)
        return;
    if (exchange_report_late(group, sequence, true))
        group->late_reported = sequence + 1;
}

void exchange_tick(struct exchange *exchange, uint64_t now_ns)
{
    exchange->now_ns = now_ns;
    for (uint32_t node = 0;
         (node = peer_stirred_from(exchange, node)) < exchange->options.node_count; node++)
        receive_replenish(exchange, node);
    for (struct exchange_job *job = exchange->jobs; job; job = job->next) {
        waiting_tick(job);
        for (struct exchange_group *group = job->groups; group; group = group->next) {
            segments_count(group);
            if (group->failed)
                continue;
            exchange_tick_group(group, now_ns);
            stability_tick(group);
            /* Where memory was lacking nothing may be in flight whose end would try again. */
            if (group->starved)
                group_mark_dirty(group);
            group->starved = false;
        }
    }
    links_tick(exchange, now_ns);
    archives_tick(exchange);
}

void exchange_late_query(struct exchange *exchange, uint64_t job, uint32_t id, uint64_t sequence)
{
    const struct exchange_group *group = exchange_find(exchange, job, id);
    if (group)
        (void)exchange_report_late(group, sequence, false); /* asked again while it is late */
}

/* --- for tests -------------------------------------------------------------------------------- */

void exchange_check(const struct exchange *exchange)
{
    for (uint32_t i = 0; i < exchange->options.node_count; i++) {
        const struct exchange_peer *account = &exchange->peers[i];
        if (account->up && !exchange->options.shared_receives)
            assert(account->posted + account->held >= account->allowed || account->lacking);
        session_check_invariants(exchange, i);
    }
    archives_check_invariants(exchange);
    links_check_invariants(exchange);
    for (const struct exchange_job *job = exchange->jobs; job; job = job->next) {
        for (const struct exchange_group *group = job->groups; group; group = group->next) {
            slots_check_invariants(group);
            issue_check_invariants(group);
            collectives_check_invariants(group);
            any_receives_check_invariants(group);
            probes_check_invariants(group);
            stability_check_invariants(group);
        }
    }
}
