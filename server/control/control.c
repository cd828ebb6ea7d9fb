#include "server/control/control.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"

/* A daemon that could end looks so often whether an open page has heard of it. */
#define PAGE_LOOK_NS (50 * NS_PER_MS)

static void control_on_stop(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control *control = argument;
    event_base_loopbreak(control->base);
}

/* The drain is over: say what there is to say, then leave the loop. */
static void control_begin_stop(struct control *control)
{
    control->stopping = true;
    event_del(control->unix_event);
    event_del(control->tcp_event);
    struct control_worker *worker, *next_worker;
    HASH_ITER(hh, control->workers, worker, next_worker)
    {
        control_worker_finish(worker);
    }
    for (uint32_t node = 0; node < control->config->server_count; node++) {
        struct control_peer *peer = control->peer_of[node];
        if (!peer)
            continue;
        if (peer->stream)
            control_stream_finish(peer->stream);
        peer->stream = NULL;
        control_peer_free(peer);
    }
    struct timeval limit = {CONTROL_FLUSH_S, 0};
    evtimer_add(control->stop_event, &limit);
}

static void control_do_due(struct control *control, uint64_t now_ns)
{
    enum membership_action action;
    uint32_t node;
    while (membership_next_action(&control->membership, now_ns, &action, &node)) {
        struct message ping = {.type = MESSAGE_PING};
        char text[MEMBERSHIP_REASON_BYTES];
        uint64_t heard_ns;
        switch (action) {
        case MEMBERSHIP_CONNECT:
            control_connect_node(control, node);
            break;
        case MEMBERSHIP_PING:
            if (control_engine_goes_on(control)) /* else the other daemons are to act */
                control_peer_send(control, node, &ping);
            break;
        case MEMBERSHIP_SILENT:
            /* This thread may have been late: bytes that have come are no silence. */
            heard_ns = control_peer_heard_ns(control, node, now_ns);
            if (heard_ns + control->membership.silence_ns > now_ns) {
                membership_heard(&control->membership, node, heard_ns);
                break;
            }
            snprintf(text, sizeof(text), "no heartbeat for %u ms", control->config->peer_ms);
            control_peer_end_node(control, node, text, false);
            break;
        case MEMBERSHIP_GONE:
            snprintf(text, sizeof(text), "no other connection for %u ms after the last one: %.440s",
                     control->config->peer_ms, control->membership.peers[node].reason);
            control_peer_gone(control, node, text);
            break;
        case MEMBERSHIP_KNOCK:
            control_connect_knock(control, node);
            break;
        }
    }
}

static bool control_is_flushed(const struct control *control)
{
    const struct control_stream *stream;
    DL_FOREACH(control->streams, stream)
    {
        if (stream->finishing)
            return false;
    }
    return true;
}

static void control_set_timer(struct event *timer, uint64_t now_ns, uint64_t due_ns)
{
    if (due_ns == UINT64_MAX) {
        event_del(timer);
        return;
    }
    uint64_t wait_ns = due_ns > now_ns ? due_ns - now_ns : 0;
    struct timeval wait = {(time_t)(wait_ns / NS_PER_S),
                           (suseconds_t)(wait_ns % NS_PER_S / 1000 + 1)};
    evtimer_add(timer, &wait);
}

/* Messages that are due to other daemons do not wait for whatever else there is to do. */
static void control_on_heartbeat(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control *control = argument;
    if (control->stopping)
        return;
    uint64_t now_ns = clock_now_ns();
    control_do_due(control, now_ns);
    control_set_timer(control->heartbeat_event, now_ns, membership_deadline(&control->membership));
    control_update_later(control);
}

/* The one update of a turn: whatever its callbacks have changed, what is due now is done, the timer
 * is set, and the end is seen. */
static void control_on_update(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control *control = argument;
    control->updates++;
    if (!control->stopping) {
        uint64_t now_ns = clock_now_ns();
        control_handshake_settle(control);
        control_do_due(control, now_ns);
        uint64_t due_ns = coordinator_tick(control->coordinator, now_ns);
        if (coordinator_retired(control->coordinator)) {
            control_drain(control, control->config->drain_ms);
            due_ns = coordinator_tick(control->coordinator, now_ns);
        }
        bool stopped = coordinator_stopped(control->coordinator) && !admin_trace_waits(control);
        if (stopped && admin_page_waits(control, now_ns)) {
            stopped = false;
            due_ns = now_ns + PAGE_LOOK_NS;
        }
        if (!stopped) {
            control_set_timer(control->tick_event, now_ns, due_ns);
            control_set_timer(control->heartbeat_event, now_ns,
                              membership_deadline(&control->membership));
            return;
        }
        control_begin_stop(control);
    }
    if (control_is_flushed(control))
        event_base_loopbreak(control->base);
}

static void control_on_tick(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    control_update_later(argument);
}

/* Tell how many lines were kept back, when no more come. */
static void control_sweep_lines(struct control *control)
{
    uint64_t now_ns = clock_now_ns();
    for (int known = 0; known < 2; known++)
        log_throttle_sweep(control->log, &control->stranger_lines[known], now_ns,
                           "connections that have not authenticated");
    log_throttles_sweep(control->log, &control->node_lines, now_ns, "connections with a node");
    log_throttles_sweep(control->log, &control->user_lines, now_ns, "connections of a user");
}

static void control_on_alive(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control *control = argument;
    admin_sample(control);
    if (control->config->metrics_port != 0)
        control_why_watch(control);
    admin_accept_again(control);
    control_closer_sweep(control);
    control_source_look_up(control);
    control_sweep_lines(control);
    if (control_engine_goes_on(control)) /* the watchdog is for both threads */
        control_notice(control, CONTROL_ALIVE);
    control_update_later(control);
}

static void control_on_engine(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    control_engine_events(argument);
    control_update_later(argument);
}

/* Secrets and certificates alone; connections that are there go on with what they have. */
static void control_reload(struct control *control)
{
    struct error error = {0};
    struct credentials *credentials = control->options.credentials;
    if (credentials_load(credentials, control->config, &error) < 0)
        log_error(control->log, "SIGHUP: the old secrets and certificates stay: %s", error.text);
    else
        log_info(control->log, "SIGHUP: %s read anew; new connections use %s",
                 credentials->certificates ? "certificates are" : "secrets are",
                 credentials->certificates ? "them" : "the first, and accept all");
}

static void control_on_signal(evutil_socket_t fd, short what, void *argument)
{
    (void)what;
    struct control *control = argument;
    struct signalfd_siginfo info;
    if (read(fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    int number = (int)info.ssi_signo;
    if (number == SIGHUP) {
        control_reload(control);
    } else if (number == SIGUSR1) {
        log_info(control->log, "this node has no more ranks; the daemon ends when no node has");
        coordinator_retire(control->coordinator, clock_now_ns());
    } else if (control->options.failure && !control->draining) {
        struct timeval soon = {CONTROL_FLUSH_S, 0};
        log_info(control->log, "%s: the other daemons have %d s to hear why this one cannot start",
                 strsignal(number), CONTROL_FLUSH_S);
        control->draining = true;
        evtimer_add(control->stop_event, &soon);
    } else if (control->draining) {
        log_warning(control->log, "%s again: ending at once", strsignal(number));
        control->result = ERR_STATE;
        event_base_loopbreak(control->base);
        return;
    } else {
        log_info(control->log, "%s", strsignal(number));
        control_drain(control, control->config->drain_ms);
    }
    control_update_later(control);
}

/* The launcher holds the other end: its end is ours. */
static void control_on_parent(evutil_socket_t fd, short what, void *argument)
{
    (void)what;
    struct control *control = argument;
    char bytes[64];
    ssize_t count = read(fd, bytes, sizeof(bytes));
    if (count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR)))
        return;
    log_info(control->log, "the parent process is gone");
    event_del(control->parent_event);
    uint32_t limit_ms = control->config->drain_ms;
    control_drain(control, limit_ms < CONTROL_PARENT_DRAIN_MS ? limit_ms : CONTROL_PARENT_DRAIN_MS);
    control_update_later(control);
}

/* A listener stays readable while a connection cannot be taken: it is looked at again later. */
static void control_pause_accepting(struct control *control, int cause)
{
    static const struct timeval pause = {0, CONTROL_ACCEPT_MS * 1000L};
    uint64_t now_ns = clock_now_ns();
    if (control->accept_told_ns == 0 || now_ns - control->accept_told_ns > 60 * NS_PER_S) {
        log_error(control->log, "connections cannot be accepted, and have to wait: %s",
                  strerror(cause));
        control->accept_told_ns = now_ns;
    }
    if (!control_descriptors_wait(control, now_ns))
        control_descriptors_refuse(control, control_dialogue_turn_away);
    event_del(control->unix_event);
    event_del(control->tcp_event);
    evtimer_add(control->accept_event, &pause);
}

static void control_on_accept_again(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control *control = argument;
    if (control->stopping)
        return;
    event_add(control->unix_event, NULL);
    event_add(control->tcp_event, NULL);
}

/* However many strangers there are, this node's workers find descriptors. */
static void control_refuse_stranger(struct control *control, int fd)
{
    log_throttled(control->log, &control->stranger_lines[false], clock_now_ns(), LOG_LEVEL_WARNING,
                  "a connection is closed: other descriptors than those for workers are all used");
    close(fd);
}

/* One connection, or none. */
static bool control_accept(struct control *control, int listening)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof(address);
    int fd = accept4(listening, (struct sockaddr *)&address, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            control_pause_accepting(control, errno);
        return false;
    }
    control->short_since_ns = 0;
    if (listening == control->unix_fd)
        control_dialogue_accept(control, fd);
    else if (control_descriptor_is_kept(control, fd) &&
             !control_connect_squeeze(control, &fd, (struct sockaddr *)&address))
        control_refuse_stranger(control, fd);
    else
        control_connect_accept(control, fd, (struct sockaddr *)&address);
    return true;
}

static void control_on_accept(evutil_socket_t listening, short what, void *argument)
{
    (void)what;
    struct control *control = argument;
    /* Many may come at once, and whoever is behind them would wait a round of the loop for each. */
    for (uint32_t i = 0; i < CONTROL_TURN_ACCEPTS && control_accept(control, listening); i++) {
    }
    control_update_later(control);
}

/* --- the start */

static struct event *control_reading(struct control *control, int fd, int priority,
                                     event_callback_fn callback)
{
    struct event *event = event_new(control->base, fd, EV_READ | EV_PERSIST, callback, control);
    if (event && (event_priority_set(event, priority) < 0 || event_add(event, NULL) < 0)) {
        event_free(event);
        event = NULL;
    }
    return event;
}

/* Not vital is the update: whatever asks for it comes first, so that it is one for all of it. */
static void control_make_timers(struct control *control)
{
    control->update_event = event_new(control->base, -1, 0, control_on_update, control);
    control->tick_event = evtimer_new(control->base, control_on_tick, control);
    control->accept_event = evtimer_new(control->base, control_on_accept_again, control);
    control->heartbeat_event = evtimer_new(control->base, control_on_heartbeat, control);
    control->stop_event = evtimer_new(control->base, control_on_stop, control);
    control->alive_event = event_new(control->base, -1, EV_PERSIST, control_on_alive, control);
    struct event *vital[] = {control->heartbeat_event, control->stop_event, control->alive_event};
    for (size_t i = 0; i < sizeof(vital) / sizeof(vital[0]); i++) {
        if (vital[i])
            event_priority_set(vital[i], CONTROL_VITAL);
    }
}

static int control_make_events(struct control *control, struct error *error)
{
    const struct control_options *options = &control->options;
    const struct control_engine *engine = &options->engine;
    uint32_t alive_ms = options->alive_ms && options->alive_ms < 1000 ? options->alive_ms : 1000;
    struct timeval period = {alive_ms / 1000, (suseconds_t)(alive_ms % 1000) * 1000};
    control->unix_event =
        control_reading(control, control->unix_fd, CONTROL_LOW, control_on_accept);
    control->tcp_event = control_reading(control, control->tcp_fd, CONTROL_LOW, control_on_accept);
    int engine_fd = engine->event_descriptor(engine->engine);
    if (engine_fd >= 0)
        control->engine_event =
            control_reading(control, engine_fd, CONTROL_HIGH, control_on_engine);
    if (options->signal_fd >= 0)
        control->signal_event =
            control_reading(control, options->signal_fd, CONTROL_VITAL, control_on_signal);
    if (options->parent_fd >= 0)
        control->parent_event =
            control_reading(control, options->parent_fd, CONTROL_VITAL, control_on_parent);
    control_make_timers(control);
    if (!control->unix_event || !control->tcp_event || (engine_fd >= 0 && !control->engine_event) ||
        (options->signal_fd >= 0 && !control->signal_event) ||
        (options->parent_fd >= 0 && !control->parent_event) || !control->tick_event ||
        !control->update_event || !control->stop_event || !control->accept_event ||
        !control->heartbeat_event || !control->alive_event ||
        event_add(control->alive_event, &period) < 0)
        return error_set(error, ERR_MEMORY, "the control thread's events cannot be made");
    return 0;
}

/* A launcher's socket is held to the rule of listen.address. */
static int control_check_loopback(const struct control *control, int fd, const char *option,
                                  struct error *error)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof(address);
    if (credentials_present(control->options.credentials))
        return 0;
    if (getsockname(fd, (struct sockaddr *)&address, &length) < 0)
        return error_set_errno(error, errno, "%s %d", option, fd);
    if (control_address_is_loopback((struct sockaddr *)&address))
        return 0;
    char text[128];
    control_address_text((struct sockaddr *)&address, text, sizeof(text));
    return error_set(error, ERR_CONFIG, "%s %d is on %s, beyond loopback: that needs a secret_file",
                     option, fd, text);
}

/* A socket that was handed to us must be what it is said to be. */
static int control_inherit(const struct control *control, int fd, int domain, const char *option,
                           struct error *error)
{
    int type = 0, listening = 0, family = 0;
    socklen_t length = sizeof(type);
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) < 0)
        return error_set_errno(error, errno, "%s %d", option, fd);
    length = sizeof(family);
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length);
    length = sizeof(listening);
    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length);
    bool fits = domain == AF_UNIX ? family == AF_UNIX : family == AF_INET || family == AF_INET6;
    if (type != SOCK_STREAM || !fits)
        return error_set(error, ERR_INVALID, "%s %d is not a %s stream socket", option, fd,
                         domain == AF_UNIX ? "Unix" : "TCP");
    int result = domain == AF_UNIX ? 0 : control_check_loopback(control, fd, option, error);
    if (result < 0)
        return result;
    if (!listening && listen(fd, 512) < 0)
        return error_set_errno(error, errno, "%s %d: listening", option, fd);
    if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return error_set_errno(error, errno, "%s %d", option, fd);
    return 0;
}

static int control_open_sockets(struct control *control, struct error *error)
{
    int result = 0;
    if (control->options.socket_fd >= 0) {
        control->unix_fd = control->options.socket_fd;
        result = control_inherit(control, control->unix_fd, AF_UNIX, "--socket-fd", error);
    } else {
        result = control_listen_unix(control, &control->unix_fd, &control->socket_file, error);
        control->owns_socket_path = result == 0;
    }
    if (control->options.listen_fd >= 0) {
        control->tcp_fd = control->options.listen_fd;
        if (result == 0)
            result = control_inherit(control, control->tcp_fd, AF_INET, "--listen-fd", error);
    } else if (result == 0) {
        result = control_listen_tcp(control, &control->tcp_fd, error);
    }
    return result;
}

static uint64_t control_machine_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : UINT64_MAX;
}

static int control_make_parts(struct control *control, struct error *error)
{
    const struct config *config = control->config;
    struct coordinator_io io = control_coordinator_io(control);
    control->accounts = (struct account_book){
        .node = config->node,
        .own_uid = geteuid(),
        .limits = {[ACCOUNT_MEMORY] =
                       config->user_bytes > 0 ? config->user_bytes : control_machine_bytes(),
                   [ACCOUNT_LEFT] = UINT64_MAX,
                   [ACCOUNT_OUTPUT] = CONTROL_USER_OUTPUT_MAX_BYTES,
                   [ACCOUNT_DESCRIPTORS] = CONTROL_USER_DESCRIPTORS(config->workers)}};
    control->peer_of = calloc(config->server_count, sizeof(struct control_peer *));
    control->told = calloc(config->server_count, sizeof(bool));
    control->conversations = calloc(config->server_count, sizeof(struct conversation));
    if (control_turn_init(control) < 0 || !control->peer_of || !control->told ||
        !control->conversations || control_source_begin(control) < 0 ||
        membership_init(&control->membership, config->server_count, config->self,
                        config->heartbeat_ms, config->peer_ms, clock_now_ns()) < 0 ||
        coordinator_create(&control->coordinator, config, control->log, &control->membership, &io) <
            0)
        return error_set(error, ERR_MEMORY, "no memory for the control thread");
    return 0;
}

int control_create(struct control **created, const struct control_options *options,
                   struct error *error)
{
    struct control *control = calloc(1, sizeof(*control));
    if (!control)
        return error_set(error, ERR_MEMORY, "no memory for the control thread");
    control->options = *options;
    control->config = options->config;
    control->log = options->log;
    control->unix_fd = control->tcp_fd = control->spare_fd = -1;
    control->on_told = control_why_told;
    control->why_document = control_why_document;
    control->why_verdicts = control_why_verdicts;
    /* Others may remember workers of the daemon before this one by their numbers. */
    auth_random(&control->next_worker, sizeof(control->next_worker));
    control->started_ns = clock_now_ns();
    auth_roster_hash(control->roster_hash, control->config);
    auth_random(&control->incarnation, sizeof(control->incarnation));
    int result = control_make_parts(control, error);
    if (result == 0)
        result = control_open_sockets(control, error);
    if (result == 0)
        control_descriptors_init(control);
    if (result == 0 && options->of_run)
        coordinator_set_run(control->coordinator);
    if (result == 0)
        result = control_make_events(control, error);
    if (result == 0)
        result = admin_create(&control->admin, control, error);
    if (result < 0) {
        control_free(control);
        return result;
    }
    *created = control;
    return 0;
}

int control_run(struct control *control)
{
    if (control->options.failure) {
        struct timeval limit = {CONTROL_FAILURE_S, 0};
        coordinator_fail(control->coordinator, control->options.failure);
        evtimer_add(control->stop_event, &limit);
    } else {
        control_notice(control, CONTROL_READY);
    }
    control_update_later(control);
    if (event_base_dispatch(control->base) < 0)
        return ERR_SYSTEM;
    return control->result;
}

static void control_free_event(struct event **event)
{
    if (*event)
        event_free(*event);
    *event = NULL;
}

void control_free(struct control *control)
{
    if (!control)
        return;
    struct event **events[] = {
        &control->unix_event,   &control->tcp_event,      &control->engine_event,
        &control->signal_event, &control->parent_event,   &control->tick_event,
        &control->alive_event,  &control->stop_event,     &control->accept_event,
        &control->update_event, &control->heartbeat_event};
    admin_free(control->admin);
    struct control_worker *worker, *next_worker;
    HASH_ITER(hh, control->workers, worker, next_worker)
    {
        control_worker_free(worker);
    }
    admin_trace_clear(control);
    control_why_clear(control);
    while (control->peers)
        control_peer_free(control->peers);
    while (control->streams)
        control_stream_free(control->streams);
    control_closer_clear(control);
    control_source_clear(control);
    coordinator_destroy(control->coordinator);
    membership_clear(&control->membership);
    while (control->arenas) /* the engine has them still */
        control_arena_release(control, control->arenas->worker);
    account_book_clear(&control->accounts);
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        control_free_event(events[i]);
    if (control->dns)
        evdns_base_free(control->dns, 0);
    control_turn_clear(control);
    if (control->owns_socket_path)
        control_unlink_unix(control, &control->socket_file);
    int descriptors[] = {control->unix_fd, control->tcp_fd, control->spare_fd,
                         control->options.signal_fd, control->options.parent_fd};
    for (size_t i = 0; i < sizeof(descriptors) / sizeof(descriptors[0]); i++) {
        if (descriptors[i] >= 0)
            close(descriptors[i]);
    }
    for (uint32_t i = 0; control->conversations && i < control->config->server_count; i++)
        conversation_clear(&control->conversations[i]);
    free(control->conversations);
    free(control->peer_of);
    free(control->told);
    free(control);
}

uint16_t control_port(const struct control *control)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_storage storage;
    } address = {.storage = {0}};
    socklen_t length = sizeof(address);
    if (getsockname(control->tcp_fd, &address.any, &length) < 0)
        return 0;
    /* The port has the same offset in both families. */
    return ntohs(address.v4.sin_port);
}
