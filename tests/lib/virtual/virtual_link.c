/* Control connections between virtual daemons. The real membership decides who is there, when to
 * connect, when to send a heartbeat, and when a peer has been silent for too long; the handshake is
 * a word each way, and a socket is a channel that keeps order. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/lib/virtual/virtual_private.h"

#define HANDSHAKE_NS (5 * NS_PER_S) /* CONTROL_HANDSHAKE_S */

enum word_kind {
    WORD_HELLO,   /* a daemon connects */
    WORD_WELCOME, /* it is let in */
    WORD_LINE,    /* on an open connection */
    WORD_CLOSE,   /* one side has closed it, or knows nothing of it */
};

struct word {
    enum word_kind kind;
    struct virtual_node *from, *to;
    uint64_t connection;
    uint64_t incarnation;    /* of the sender's daemon */
    uint64_t session, heard; /* WORD_HELLO, WORD_WELCOME: it can go on with; lines of it so far */
    const char *reason;      /* WORD_CLOSE */
    size_t length;
    char *line; /* WORD_LINE */
};

static void deliver_word(struct virtual_cluster *cluster, void *what, uint64_t number);

static bool *severed(struct virtual_cluster *cluster, uint32_t a, uint32_t b)
{
    return a < b ? &cluster->severed[a][b] : &cluster->severed[b][a];
}

static void word_send(struct virtual_node *from, uint32_t to, struct word word)
{
    struct word *carried = malloc(sizeof(*carried));
    EXPECT(carried);
    *carried = word;
    carried->from = from;
    carried->to = &from->cluster->nodes[to];
    carried->incarnation = from->incarnation;
    virtual_schedule_in(from->cluster, &from->to[to], deliver_word, carried, 0);
}

static void word_close(struct virtual_node *from, uint32_t to, uint64_t connection,
                       const char *reason)
{
    word_send(from, to,
              (struct word){.kind = WORD_CLOSE, .connection = connection, .reason = reason});
}

void virtual_link_send(struct virtual_node *node, uint32_t peer, const struct message *message)
{
    const struct virtual_link *link = &node->links[peer];
    struct word word = {.kind = WORD_LINE, .connection = link->connection};
    bool recovers = node->membership.peers[peer].session != 0;
    if (link->state != LINK_OPEN && !recovers)
        return;
    struct message numbered = *message;
    numbered.heard = link->conversation.heard;
    word.line = message_encode(&numbered, &word.length);
    EXPECT(word.line);
    word.line[--word.length] = '\0'; /* without the newline */
    if (recovers && message->type != MESSAGE_PING)
        EXPECT(conversation_say(&node->links[peer].conversation, 0, word.line, word.length));
    if (link->state == LINK_OPEN)
        word_send(node, peer, word);
    else
        free(word.line);
}

/* Say the lines again as control_peer_say_again in server/control/peers/control_peer.c does. */
static void link_say_again(struct virtual_link *link)
{
    const struct conversation_line *line = link->conversation.first;
    for (; line; line = line->next)
        word_send(link->node, link->peer,
                  (struct word){.kind = WORD_LINE,
                                .connection = link->connection,
                                .line = strdup(line->text),
                                .length = line->length});
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Lose the peer as control_peer_lose in server/control/peers/control_peer.c does. */
static void link_lose(struct virtual_link *link, const char *reason)
{
    struct virtual_node *node = link->node;
    membership_forget(&node->membership, link->peer);
    conversation_clear(&link->conversation);
    node->losses++;
    virtual_command(node,
                    &(struct engine_command){.kind = COMMAND_PEER_DISCONNECT, .peer = link->peer});
    coordinator_peer_down(node->coordinator, node->cluster->now_ns, link->peer, reason);
}

/* End the connection as control_peer_finish in that file does. recovers: the connection alone has
 * ended, not the session. */
static void link_end_as(struct virtual_link *link, const char *reason, bool recovers)
{
    struct virtual_node *node = link->node;
    uint64_t now_ns = node->cluster->now_ns;
    bool open = link->state == LINK_OPEN;
    if (link->state == LINK_NONE)
        return;
    word_close(node, link->peer, link->connection, "the other side has closed the connection");
    link->state = LINK_NONE;
    link->connection = 0;
    bool away = open && recovers ? membership_away(&node->membership, link->peer, now_ns)
                                 : membership_is_away(&node->membership, link->peer);
    membership_lost(&node->membership, link->peer, now_ns, reason);
    virtual_called(node);
    if (open && away && recovers) {
        virtual_command(node, &(struct engine_command){.kind = COMMAND_PEER_DISCONNECT,
                                                       .peer = link->peer,
                                                       .recovers = true});
        coordinator_peer_away(node->coordinator, now_ns, link->peer, reason);
    } else if (open || (away && !recovers))
        link_lose(link, reason);
}

static void link_end(struct virtual_link *link, const char *reason)
{
    link_end_as(link, reason, true);
}

/* --- the beginning ---------------------------------------------------------------------------- */

static void token_write(uint8_t token[TRANSPORT_TOKEN_BYTES], uint64_t connection,
                        const struct virtual_node *to)
{
    uint64_t number = connection << 8 | to->number;
    memset(token, 0, TRANSPORT_TOKEN_BYTES);
    memcpy(token, &number, sizeof(number));
}

/* Open the link as handshake_open in server/control/peers/control_handshake.c does. */
static void link_open(struct virtual_link *link, uint64_t connection, const struct word *of,
                      bool connects)
{
    struct virtual_node *node = link->node, *peer = &node->cluster->nodes[link->peer];
    struct engine_command command = {.kind = COMMAND_PEER_CONNECT};
    struct engine_peer_connect *fabric = &command.peer_connect;
    struct membership *membership = &node->membership;
    uint64_t session = membership->peers[peer->number].session;
    struct error error;
    fabric->resumes = session != 0 && session == of->session;
    if (!fabric->resumes && of->incarnation != membership->peers[peer->number].incarnation)
        membership_ended(membership, peer->number);
    if (!fabric->resumes && membership_is_away(membership, peer->number))
        link_lose(link, "it does not know any more where they were");
    if (!fabric->resumes) {
        conversation_clear(&link->conversation);
        membership_begin_session(membership, peer->number,
                                 node->cluster->options.recovery ? connection : 0);
    }
    link->state = LINK_OPEN;
    link->connection = connection;
    fabric->node = peer->number;
    fabric->active = connects;
    fabric->address_bytes = sizeof(peer->number); /* of the memory fabric */
    memcpy(fabric->address, &peer->number, sizeof(peer->number));
    token_write(fabric->receive_token, connection, node);
    token_write(fabric->send_token, connection, peer);
    membership_connected(membership, peer->number, of->incarnation, node->cluster->now_ns);
    fabric->connection = membership->peers[peer->number].connection;
    virtual_command(node, &command);
    if (!connects && !node->cluster->starting)
        word_send(node, peer->number,
                  (struct word){.kind = WORD_WELCOME,
                                .connection = connection,
                                .session = fabric->resumes ? session : 0,
                                .heard = link->conversation.heard});
    if (fabric->resumes) {
        EXPECT(conversation_acknowledge(&link->conversation, of->heard, &error) == 0);
        link_say_again(link);
    } else {
        coordinator_peer_connected(node->coordinator, node->cluster->now_ns, peer->number);
    }
    virtual_called(node);
}

void virtual_link_begin(struct virtual_node *low, struct virtual_node *high)
{
    uint64_t connection = ++low->cluster->connections;
    const struct word from_low = {.incarnation = low->incarnation};
    const struct word from_high = {.incarnation = high->incarnation};
    link_open(&high->links[low->number], connection, &from_low, false);
    link_open(&low->links[high->number], connection, &from_high, true);
}

static void attempt_over(struct virtual_cluster *cluster, void *what, uint64_t connection)
{
    struct virtual_link *link = what;
    if (!link->node->alive || link->state != LINK_TRYING || link->connection != connection)
        return;
    link_end(link, *severed(cluster, link->node->number, link->peer) ? "No route to host"
                                                                     : "no answer in time");
}

/* Try to connect as control_connect_node in server/control/peers/control_connect.c does. */
static void link_try(struct virtual_link *link)
{
    struct virtual_node *node = link->node;
    struct virtual_cluster *cluster = node->cluster;
    bool no_route = *severed(cluster, node->number, link->peer);
    uint64_t limit_ns = membership_attempt_ns(&node->membership, link->peer, HANDSHAKE_NS);
    link->state = LINK_TRYING;
    link->connection = ++cluster->connections;
    link->offered = node->membership.peers[link->peer].session;
    if (!no_route)
        word_send(node, link->peer,
                  (struct word){.kind = WORD_HELLO,
                                .connection = link->connection,
                                .session = link->offered,
                                .heard = link->conversation.heard});
    virtual_schedule(cluster, node, no_route ? cluster->options.most_delay_ns : limit_ns,
                     attempt_over, link, link->connection);
}

/* Hear how the knock ended, as peer_knocked in server/control/peers/control_peer.c does. A machine
 * that is off does not answer. */
static void knock_over(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct virtual_link *link = what;
    struct virtual_node *node = link->node, *peer = &cluster->nodes[link->peer];
    bool refused = !*severed(cluster, node->number, link->peer) && !peer->alive && !peer->off;
    if (!node->alive || !membership_is_away(&node->membership, link->peer) ||
        node->membership.peers[link->peer].state != MEMBERSHIP_DOWN)
        return;
    if (refused) {
        membership_ended(&node->membership, link->peer);
        link_lose(link, "Connection refused");
    } else {
        membership_knocked(&node->membership, link->peer, cluster->now_ns);
    }
    virtual_called(node);
}

static void link_knock(struct virtual_link *link)
{
    virtual_schedule(link->node->cluster, link->node, link->node->cluster->options.most_delay_ns,
                     knock_over, link, 0);
}

static void claim_over(struct virtual_cluster *cluster, void *what, uint64_t connection)
{
    (void)cluster;
    struct virtual_link *link = what;
    if (!link->node->alive || link->claim != connection)
        return;
    link->claim = 0;
    word_close(link->node, link->peer, connection,
               "another daemon of its name has neither answered nor gone in time");
}

/* Take the hello as handshake_claim does. */
static void link_claim(struct virtual_link *link, const struct word *hello)
{
    struct virtual_node *node = link->node;
    if (membership_claim(&node->membership, link->peer, hello->incarnation) == MEMBERSHIP_WAIT) {
        link->claim = hello->connection;
        link->claim_incarnation = hello->incarnation;
        link->claim_session = hello->session;
        link->claim_heard = hello->heard;
        link->claimed_ns = node->cluster->now_ns;
        virtual_link_send(node, link->peer, &(struct message){.type = MESSAGE_PING});
        virtual_schedule(node->cluster, node, HANDSHAKE_NS, claim_over, link, link->claim);
        return;
    }
    link_end(link, "it has connected again");
    link_open(link, hello->connection, hello, false);
}

/* Settle the claim as control_handshake_settle does. */
static void link_settle(struct virtual_link *link)
{
    uint64_t claim = link->claim;
    if (claim == 0)
        return;
    switch (membership_settle(&link->node->membership, link->peer, link->claimed_ns)) {
    case MEMBERSHIP_TAKE:
        link->claim = 0;
        link_open(link, claim,
                  &(struct word){.incarnation = link->claim_incarnation,
                                 .session = link->claim_session,
                                 .heard = link->claim_heard},
                  false);
        break;
    case MEMBERSHIP_WAIT:
        break;
    case MEMBERSHIP_REFUSE:
        link->claim = 0;
        word_close(link->node, link->peer, claim, "another daemon of that name is connected");
        break;
    }
}

/* --- what comes ------------------------------------------------------------------------------- */

/* Take the line as handshake_on_word does. */
static void take_line(struct virtual_link *link, const struct word *word)
{
    struct virtual_node *node = link->node;
    struct message message;
    struct error error;
    int result =
        message_decode(&message, MESSAGE_BETWEEN_DAEMONS, word->line, word->length, &error);
    EXPECT_MSG(result == 0, "between daemons: %s: %s", word->line, error.text);
    membership_heard(&node->membership, link->peer, node->cluster->now_ns);
    if (message.type == MESSAGE_PING) {
        if (node->membership.peers[link->peer].session != 0)
            EXPECT(conversation_acknowledge(&link->conversation, message.heard, &error) == 0);
    } else {
        link->conversation.heard++;
        result = coordinator_peer_message(node->coordinator, node->cluster->now_ns, link->peer,
                                          &message, &error);
        EXPECT_MSG(result == 0, "%s -> %s: %s", word->from->config.node, node->config.node,
                   error.text);
    }
    message_clear(&message);
}

/* End the attempt as connect_failed in server/control/peers/control_connect.c does: a kernel
 * without a daemon refuses. */
static void link_closed(struct virtual_link *link, const char *reason)
{
    bool refused = strcmp(reason, "Connection refused") == 0;
    if (refused)
        membership_ended(&link->node->membership, link->peer);
    link_end_as(link, reason, !refused);
}

static void take_word(struct virtual_link *link, const struct word *word)
{
    bool known = link->state != LINK_NONE && link->connection == word->connection;
    switch (word->kind) {
    case WORD_HELLO:
        link_claim(link, word);
        break;
    case WORD_WELCOME:
        if (known && link->state == LINK_TRYING && word->session != 0 &&
            word->session != link->node->membership.peers[link->peer].session)
            link_end(link, "it goes on with what is over"); /* since this side has offered it */
        else if (known && link->state == LINK_TRYING)
            link_open(link, word->connection, word, true);
        else
            word_close(link->node, link->peer, word->connection, "Connection reset by peer");
        break;
    case WORD_LINE:
        if (known)
            take_line(link, word);
        else
            word_close(link->node, link->peer, word->connection, "Connection reset by peer");
        break;
    case WORD_CLOSE:
        if (known)
            link_closed(link, word->reason);
        if (link->claim == word->connection)
            link->claim = 0;
        break;
    }
    virtual_called(link->node);
}

static void deliver_word(struct virtual_cluster *cluster, void *what, uint64_t number)
{
    (void)number;
    struct word *word = what;
    struct virtual_node *to = word->to;
    bool way = !*severed(cluster, word->from->number, to->number);
    if (way && to->alive)
        take_word(&to->links[word->from->number], word);
    else if (way && !to->off && word->kind == WORD_HELLO)
        word_close(to, word->from->number, word->connection, "Connection refused");
    free(word->line);
    free(word);
}

/* --- what is due ------------------------------------------------------------------------------ */

static bool word_is_line_of(const void *what, uint64_t from)
{
    const struct word *word = what;
    return word->kind == WORD_LINE && word->from->number == from;
}

/* Declare the peer silent as control_do_due in server/control/control.c does: a peer whose words
 * have come and wait to be read is not silent. */
static void link_silent(struct virtual_link *link)
{
    struct virtual_node *node = link->node;
    char text[MEMBERSHIP_REASON_BYTES];
    if (virtual_time_is_due(node, deliver_word, word_is_line_of, link->peer)) {
        membership_heard(&node->membership, link->peer, node->cluster->now_ns);
        return;
    }
    snprintf(text, sizeof(text), "no heartbeat for %" PRIu32 " ms", node->config.peer_ms);
    link_end_as(link, text, false);
}

void virtual_link_due(struct virtual_node *node)
{
    enum membership_action action;
    uint32_t peer;
    for (uint32_t i = 0; i < node->cluster->options.nodes; i++)
        link_settle(&node->links[i]);
    while (membership_next_action(&node->membership, node->cluster->now_ns, &action, &peer)) {
        switch (action) {
        case MEMBERSHIP_CONNECT:
            link_try(&node->links[peer]);
            break;
        case MEMBERSHIP_PING:
            virtual_link_send(node, peer, &(struct message){.type = MESSAGE_PING});
            break;
        case MEMBERSHIP_SILENT:
            link_silent(&node->links[peer]);
            break;
        case MEMBERSHIP_GONE:
            if (node->links[peer].state == LINK_OPEN)
                link_end_as(&node->links[peer], "it has not come back in time", false);
            else
                link_lose(&node->links[peer], "it has not come back in time");
            break;
        case MEMBERSHIP_KNOCK:
            link_knock(&node->links[peer]);
            break;
        }
    }
}

/* Take the event as adapter_peer_event in server/control/control_adapter.c does. */
void virtual_link_engine_event(struct virtual_node *node, const struct engine_event *event)
{
    struct virtual_link *link = &node->links[event->node];
    uint64_t now_ns = node->cluster->now_ns;
    char text[MEMBERSHIP_REASON_BYTES];
    if (!membership_has(&node->membership, event->node, event->connection))
        return;
    if (event->type == ENGINE_PEER_UP) {
        node->resumed += membership_is_away(&node->membership, event->node);
        membership_up(&node->membership, event->node, now_ns);
        coordinator_peer_up(node->coordinator, now_ns, event->node);
        return;
    }
    snprintf(text, sizeof(text), "the fabric lost it: %.480s", event->text);
    bool recovers = event->code == ERR_DISCONNECTED;
    if (!recovers)
        coordinator_peer_down(node->coordinator, now_ns, event->node, text);
    link_end_as(link, text, recovers);
}

/* --- faults ----------------------------------------------------------------------------------- */

void virtual_link_drop_all(struct virtual_node *node, bool silently)
{
    for (uint32_t i = 0; i < node->cluster->options.nodes; i++) {
        struct virtual_link *link = &node->links[i];
        const uint64_t ends[] = {link->connection, link->claim};
        for (int e = 0; e < 2 && !silently; e++) {
            if (ends[e] != 0)
                word_close(node, i, ends[e], "Connection reset by peer");
        }
        conversation_clear(&link->conversation);
        *link = (struct virtual_link){.node = node, .peer = i};
    }
}

bool virtual_cluster_linked(const struct virtual_cluster *cluster, uint32_t a, uint32_t b)
{
    return cluster->nodes[a].alive && cluster->nodes[b].alive &&
           cluster->nodes[a].membership.peers[b].state == MEMBERSHIP_UP &&
           cluster->nodes[b].membership.peers[a].state == MEMBERSHIP_UP;
}

static void link_cut(struct virtual_cluster *cluster, void *what, uint64_t connection)
{
    (void)cluster;
    struct virtual_link *link = what;
    if (link->node->alive && link->connection == connection)
        link_end(link, "the link was cut");
}

static void link_cut_side(struct virtual_link *link)
{
    link->claim = 0;
    if (link->state != LINK_NONE)
        virtual_schedule(link->node->cluster, link->node, 0, link_cut, link, link->connection);
}

void virtual_cluster_cut(struct virtual_cluster *cluster, uint32_t a, uint32_t b)
{
    *severed(cluster, a, b) = true;
    link_cut_side(&cluster->nodes[a].links[b]);
    link_cut_side(&cluster->nodes[b].links[a]);
}

static void link_reset(struct virtual_cluster *cluster, void *what, uint64_t connection)
{
    (void)cluster;
    struct virtual_link *link = what;
    if (link->node->alive && link->connection == connection)
        link_end(link, "Connection reset by peer");
}

void virtual_cluster_reset(struct virtual_cluster *cluster, uint32_t a, uint32_t b, bool control)
{
    struct virtual_link *link = &cluster->nodes[a].links[b];
    if (!control)
        memory_fabric_cut(cluster->fabric, a, b);
    else if (link->state != LINK_NONE)
        virtual_schedule(cluster, link->node, 0, link_reset, link, link->connection);
}

uint32_t virtual_cluster_resumed(const struct virtual_cluster *cluster, uint32_t node)
{
    return cluster->nodes[node].resumed;
}

void virtual_cluster_join_again(struct virtual_cluster *cluster, uint32_t a, uint32_t b)
{
    *severed(cluster, a, b) = false;
}

void virtual_cluster_cut_data(struct virtual_cluster *cluster, uint32_t from, uint32_t to, bool cut)
{
    memory_fabric_block(cluster->fabric, from, to, cut);
}

void virtual_cluster_delay_control(struct virtual_cluster *cluster, uint32_t from, uint32_t to,
                                   uint64_t ns)
{
    struct virtual_channel *channel = &cluster->nodes[from].to[to];
    if (channel->last_ns < cluster->now_ns + ns)
        channel->last_ns = cluster->now_ns + ns;
}

uint32_t virtual_cluster_silences(const struct virtual_cluster *cluster)
{
    return cluster->silences;
}

uint32_t virtual_cluster_losses(const struct virtual_cluster *cluster, uint32_t node)
{
    return cluster->nodes[node].losses;
}
