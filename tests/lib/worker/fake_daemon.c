#include "tests/lib/worker/fake_daemon.h"

#include "tests/lib/suite.h"
#include "tests/lib/worker/fake_exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/error.h"
#include "common/format/message.h"

#define LINE_BYTES 8192

struct worker {
    int fd;
    char line[LINE_BYTES];
    size_t bytes;
    int fds[2];   /* arena, submission doorbell */
    int bells[2]; /* a pipe: the rank's end until it has joined; the daemon's */
    struct arena arena;
    int rank;      /* -1: not joined */
    bool attached; /* its arena is mapped */
    bool apart;    /* it has released the arena */
    bool asked, whole;
};

struct opening {
    uint32_t ranks[FAKE_RANKS_MAX];
    uint32_t count, nth;
    uint32_t asked; /* bits by rank */
    uint32_t request[FAKE_RANKS_MAX];
};

struct fake_daemon {
    struct fake_daemon_options options;
    char *directory;
    char path[256];
    int listener, wake;
    pthread_t thread;
    pthread_mutex_t lock; /* of everything below */
    bool stop;
    struct fake_exchange *exchange;
    struct worker workers[FAKE_RANKS_MAX];
    uint32_t worker_count, joined;
    struct opening openings[FAKE_GROUPS_MAX];
    uint32_t opening_count, next_group, next_segment;
    uint32_t generation;
    bool failed, deaf;
    uint32_t deaths; /* of so many daemons from now on */
    uint64_t groups_closed, workers_left, pings, hellos, returned;
    uint64_t former; /* of the one that returned last */
};

static void fake_ring(void *context, uint32_t rank)
{
    struct fake_daemon *daemon = context;
    for (uint32_t i = 0; i < daemon->worker_count; i++) {
        struct worker *worker = &daemon->workers[i];
        if (worker->rank == (int)rank && worker->fd >= 0)
            ck_assert_int_gt(write(worker->bells[1], "", 1), 0);
    }
}

static void send_line(struct worker *worker, const char *line, size_t length)
{
    if (worker->fd >= 0 && send(worker->fd, line, length, MSG_NOSIGNAL) != (ssize_t)length)
        ck_assert(errno == EPIPE || errno == ECONNRESET);
}

static void send_message(struct worker *worker, const struct message *message)
{
    size_t length;
    char *line = message_encode(message, &length);
    ck_assert_ptr_nonnull(line);
    send_line(worker, line, length);
    free(line);
}

/* Send lines, the first with a descriptor. */
static void send_with(const struct worker *worker, struct iovec *lines, size_t count, int fd)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr header = {.msg_iov = lines,
                            .msg_iovlen = count,
                            .msg_control = control,
                            .msg_controllen = sizeof(control)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &fd, sizeof(int));
    if (worker->fd >= 0 && sendmsg(worker->fd, &header, MSG_NOSIGNAL) < 0)
        ck_assert(errno == EPIPE || errno == ECONNRESET);
}

static void fail_group(struct fake_daemon *daemon, int group, int code, const char *text)
{
    struct message message = {.type = MESSAGE_FAILED, .group = group, .code = code};
    snprintf(message.text, sizeof(message.text), "%s", text);
    daemon->failed |= group < 0;
    for (uint32_t i = 0; i < FAKE_GROUPS_MAX; i++)
        if (group < 0 || (uint32_t)group == i)
            fake_exchange_fail_group(daemon->exchange, i);
    for (uint32_t i = 0; i < daemon->worker_count; i++)
        if (daemon->workers[i].rank >= 0 && !daemon->workers[i].apart)
            send_message(&daemon->workers[i], &message);
}

static void disagree(void *context, uint32_t group, uint64_t sequence)
{
    (void)sequence;
    fail_group(context, (int)group, ERR_MISMATCH, "rank 0 asked for this, rank 1 for that");
}

static void fake_let_go(struct fake_daemon *daemon, struct worker *worker)
{
    if (worker->attached) {
        fake_exchange_detach(daemon->exchange, (uint32_t)worker->rank);
        arena_unmap(&worker->arena);
    }
    worker->attached = false;
    int *const all[] = {&worker->fds[0], &worker->fds[1], &worker->bells[0], &worker->bells[1]};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (*all[i] >= 0)
            close(*all[i]);
        *all[i] = -1;
    }
}

static void fake_drop(struct fake_daemon *daemon, struct worker *worker)
{
    fake_let_go(daemon, worker);
    if (worker->fd >= 0)
        close(worker->fd);
    worker->fd = worker->rank = -1;
}

static struct message group_message(const struct fake_daemon *daemon, enum message_type type,
                                    uint32_t group)
{
    struct message message = {
        .type = type,
        .group = (int32_t)group,
        .chunk_bytes = daemon->options.chunk_bytes,
        .least_shard_bytes = 256,
    };
    uint32_t weights[FAKE_RANKS_MAX];
    for (uint32_t i = 0; i < daemon->options.servers; i++)
        weights[i] = 1;
    ck_assert_int_eq(message_list_set(&message.weights, weights, daemon->options.servers), 0);
    return message;
}

static void fake_open_group(struct fake_daemon *daemon, uint32_t group, const uint32_t *ranks,
                            uint32_t count)
{
    struct message message = group_message(daemon, MESSAGE_JOINED, group);
    struct layout_rule rule = {message.weights.count,
                               message.weights.values,
                               message.chunk_bytes,
                               message.least_shard_bytes,
                               false,
                               false};
    fake_exchange_open_group(daemon->exchange, group, ranks, count, &rule);
    message_clear(&message);
}

static void fake_take_arena(struct worker *worker)
{
    struct error error;
    for (int i = 0; i < 2; i++)
        ck_assert_int_ge(worker->fds[i], 0);
    ck_assert_int_eq(pipe2(worker->bells, O_CLOEXEC | O_NONBLOCK), 0);
    ck_assert_msg(arena_attach(&worker->arena, worker->fds[0], UINT64_MAX, &error) == 0, "%s",
                  error.text);
    worker->attached = true;
}

/* The next generation, with the same ranks. */
static void fake_begin(struct fake_daemon *daemon)
{
    const uint32_t all[FAKE_RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};
    fake_exchange_restart(daemon->exchange);
    daemon->failed = false;
    daemon->generation++;
    daemon->opening_count = daemon->next_group = daemon->next_segment = 0;
    fake_open_group(daemon, 0, all, daemon->options.world_size);
    for (uint32_t i = 0; i < daemon->worker_count; i++) {
        struct worker *worker = &daemon->workers[i];
        if (worker->rank < 0)
            continue;
        fake_exchange_attach(daemon->exchange, (uint32_t)worker->rank, &worker->arena);
        worker->apart = worker->asked = false;
        struct message joined = group_message(daemon, MESSAGE_JOINED, 0);
        joined.timeout_ms = daemon->options.silence_ms;
        joined.pinned_bytes = daemon->options.pinned_bytes;
        joined.job_id = joined.lineage = 0x1234;
        joined.generation = daemon->generation;
        joined.rank = joined.local_rank = worker->rank;
        joined.world_size = joined.local_size = daemon->options.world_size;
        joined.node_count = 1;
        joined.recovery =
            daemon->options.recovery ? MESSAGE_RECOVERY_ON : MESSAGE_RECOVERY_CONFIGURED;
        joined.restart_ms = daemon->options.restart_ms;
        size_t length;
        char *line = message_encode(&joined, &length);
        send_with(worker, &(struct iovec){line, length}, 1, worker->bells[0]);
        close(worker->bells[0]);
        worker->bells[0] = -1;
        free(line);
        message_clear(&joined);
    }
}

static void join(struct fake_daemon *daemon, struct worker *worker, const struct message *message)
{
    ck_assert_uint_eq(message->world_size, daemon->options.world_size);
    fake_take_arena(worker);
    uint32_t taken = 0;
    for (uint32_t i = 0; i < daemon->worker_count; i++)
        if (daemon->workers[i].rank >= 0)
            taken |= 1u << daemon->workers[i].rank;
    worker->rank = message->rank;
    for (int rank = 0; worker->rank < 0; rank++)
        if (!(taken & 1u << rank))
            worker->rank = rank;
    if (++daemon->joined == daemon->options.world_size)
        fake_begin(daemon);
}

/* The first one to ask makes the job fail for the others. Without recovery it is not answered. */
static void fake_release(struct fake_daemon *daemon, struct worker *worker)
{
    if (!daemon->options.recovery)
        return;
    worker->apart = true;
    if (!daemon->failed)
        fail_group(daemon, -1, ERR_LOST, "a rank does not go on with this generation");
    fake_let_go(daemon, worker);
    send_message(worker, &(struct message){.type = MESSAGE_RELEASED});
}

/* When one asks otherwise, those that have asked for a whole one are turned down. */
static void fake_rejoin(struct fake_daemon *daemon, struct worker *worker, bool whole)
{
    uint32_t asked = 0, wholes = 0;
    ck_assert(worker->apart);
    fake_take_arena(worker);
    worker->asked = true;
    worker->whole = whole;
    for (uint32_t i = 0; i < daemon->worker_count; i++) {
        asked += daemon->workers[i].asked;
        wholes += daemon->workers[i].asked && daemon->workers[i].whole;
    }
    for (uint32_t i = 0; i < daemon->worker_count && wholes > 0 && wholes < asked; i++) {
        worker = &daemon->workers[i];
        if (!worker->asked || !worker->whole)
            continue;
        worker->asked = false;
        fake_let_go(daemon, worker);
        send_message(worker, &(struct message){.type = MESSAGE_ERROR,
                                               .code = ERR_AGAIN,
                                               .text = "a rank asks otherwise"});
    }
    if (asked == daemon->options.world_size && (wholes == 0 || wholes == asked))
        fake_begin(daemon);
}

/* Each rank has memory of its own, which begins with the number of the generation. */
static void fake_open_shared(struct fake_daemon *daemon, struct worker *worker,
                             const struct message *message)
{
    struct message opened = {.type = MESSAGE_SHARED_OPENED,
                             .request = message->request,
                             .group = message->group,
                             .segment = daemon->next_segment++};
    struct message failed = {
        .type = MESSAGE_FAILED, .group = -1, .code = ERR_LOST, .text = "node9 is gone"};
    bool fails = daemon->options.fails_with_shared && daemon->generation == 1;
    uint8_t generation = (uint8_t)daemon->generation;
    size_t lengths[2] = {0};
    char *lines[2] = {message_encode(&opened, &lengths[0]), message_encode(&failed, &lengths[1])};
    int fd = memfd_create("fake", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(fd, (off_t)message->bytes), 0);
    ck_assert_int_eq(pwrite(fd, &generation, 1, 0), 1);
    struct iovec parts[2] = {{lines[0], lengths[0]}, {lines[1], lengths[1]}};
    send_with(worker, parts, fails ? 2 : 1, fd);
    daemon->failed |= fails;
    close(fd);
    free(lines[0]);
    free(lines[1]);
}

static void fake_ask_for_group(struct fake_daemon *daemon, struct worker *worker,
                               const struct message *message)
{
    struct opening *opening = NULL;
    if (daemon->generation == 2 && worker->rank == 1 && daemon->options.refuses < 0) {
        send_message(worker, &(struct message){.type = MESSAGE_ERROR,
                                               .request = message->request,
                                               .code = daemon->options.refuses,
                                               .text = "no room"});
        return;
    }
    for (uint32_t i = 0; i < daemon->opening_count && !opening; i++) {
        opening = &daemon->openings[i];
        if (opening->count != message->ranks.count || opening->nth != message->nth ||
            memcmp(opening->ranks, message->ranks.values, opening->count * sizeof(uint32_t)) != 0)
            opening = NULL;
    }
    if (!opening) {
        opening = &daemon->openings[daemon->opening_count++];
        *opening = (struct opening){.count = message->ranks.count, .nth = message->nth};
        memcpy(opening->ranks, message->ranks.values, opening->count * sizeof(uint32_t));
    }
    opening->asked |= 1u << worker->rank;
    opening->request[worker->rank] = message->request;
    for (uint32_t i = 0; i < opening->count; i++)
        if (!(opening->asked & 1u << opening->ranks[i]))
            return;
    uint32_t group = ++daemon->next_group;
    fake_open_group(daemon, group, opening->ranks, opening->count);
    for (uint32_t i = 0; i < daemon->worker_count; i++) {
        int rank = daemon->workers[i].rank;
        if (rank < 0 || !(opening->asked & 1u << rank))
            continue;
        struct message opened = group_message(daemon, MESSAGE_WORKER_GROUP_OPENED, group);
        opened.request = opening->request[rank];
        send_message(&daemon->workers[i], &opened);
        message_clear(&opened);
    }
}

static void fake_leave(struct fake_daemon *daemon, struct worker *worker)
{
    struct message left = {.type = MESSAGE_LEFT};
    daemon->workers_left++;
    if (!daemon->options.never_left)
        send_message(worker, &left);
    fake_drop(daemon, worker);
}

/* A daemon that dies now dies between its answer and what it is told then. */
static void fake_greet(struct fake_daemon *daemon, struct worker *worker)
{
    struct message hello = {.type = MESSAGE_DAEMON_HELLO,
                            .protocol = MESSAGE_PROTOCOL,
                            .software = "fake 1",
                            .node = "a",
                            .member = (uint32_t)++daemon->hellos};
    if (daemon->deaf)
        return;
    if (daemon->deaths == 0) {
        send_message(worker, &hello);
        return;
    }
    daemon->deaths--;
    shutdown(worker->fd, SHUT_RD);
    send_message(worker, &hello);
    fake_drop(daemon, worker);
}

static void handle(struct fake_daemon *daemon, struct worker *worker, const char *line,
                   size_t length)
{
    struct message message;
    struct error error;
    ck_assert_msg(message_decode(&message, MESSAGE_TO_DAEMON, line, length, &error) == 0, "%s",
                  error.text);
    switch (message.type) {
    case MESSAGE_WORKER_HELLO:
        fake_greet(daemon, worker);
        break;
    case MESSAGE_JOIN:
        join(daemon, worker, &message);
        break;
    case MESSAGE_WORKER_GROUP_OPEN:
        fake_ask_for_group(daemon, worker, &message);
        break;
    case MESSAGE_WORKER_GROUP_CLOSE:
        daemon->groups_closed++;
        break;
    case MESSAGE_MEETING_OPEN: /* there is none: everything goes to the daemon */
        send_message(worker, &(struct message){.type = MESSAGE_ERROR,
                                               .request = message.request,
                                               .code = ERR_UNSUPPORTED,
                                               .text = "no meeting place"});
        break;
    case MESSAGE_WORKER_PING:
        daemon->pings++;
        if (!daemon->options.mute)
            send_message(worker, &(struct message){.type = MESSAGE_PONG});
        break;
    case MESSAGE_ENDING: /* nothing is said to it */
        break;
    case MESSAGE_LEAVE:
        fake_leave(daemon, worker);
        break;
    case MESSAGE_RELEASE:
        fake_release(daemon, worker);
        break;
    case MESSAGE_REJOIN:
        fake_rejoin(daemon, worker, message.whole);
        break;
    case MESSAGE_RETURN:
        daemon->former = message.former;
        daemon->returned++;
        break;
    case MESSAGE_SHARED_OPEN:
        fake_open_shared(daemon, worker, &message);
        break;
    case MESSAGE_SHARED_CLOSE:
        break;
    default:
        ck_abort_msg("a worker sent %s", message_type_name(message.type));
    }
    message_clear(&message);
}

static void read_worker(struct fake_daemon *daemon, struct worker *worker)
{
    struct iovec part = {.iov_base = worker->line + worker->bytes,
                         .iov_len = sizeof(worker->line) - worker->bytes};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control,
                            .msg_controllen = sizeof(control)};
    ssize_t got = recvmsg(worker->fd, &header, MSG_CMSG_CLOEXEC);
    if (got <= 0) {
        fake_drop(daemon, worker);
        return;
    }
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    if (rights)
        memcpy(worker->fds, CMSG_DATA(rights), sizeof(worker->fds));
    worker->bytes += (size_t)got;
    char *end;
    while (worker->fd >= 0 && (end = memchr(worker->line, '\n', worker->bytes))) {
        *end = '\0';
        size_t length = (size_t)(end - worker->line);
        handle(daemon, worker, worker->line, length);
        worker->bytes -= length + 1;
        memmove(worker->line, end + 1, worker->bytes);
    }
}

static void accept_worker(struct fake_daemon *daemon)
{
    int fd = accept4(daemon->listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_uint_lt(daemon->worker_count, FAKE_RANKS_MAX);
    struct worker *worker = &daemon->workers[daemon->worker_count++];
    *worker = (struct worker){.fd = fd, .fds = {-1, -1}, .bells = {-1, -1}, .rank = -1};
}

static void clear(int fd)
{
    uint64_t value;
    ssize_t got = read(fd, &value, sizeof(value));
    (void)got;
}

static void serve(struct fake_daemon *daemon)
{
    struct pollfd pollers[2 + 2 * FAKE_RANKS_MAX];
    uint32_t count = daemon->worker_count;
    pollers[0] = (struct pollfd){.fd = daemon->listener, .events = POLLIN};
    pollers[1] = (struct pollfd){.fd = daemon->wake, .events = POLLIN};
    for (uint32_t i = 0; i < count; i++) {
        struct worker *worker = &daemon->workers[i];
        pollers[2 + 2 * i] = (struct pollfd){.fd = worker->fd, .events = POLLIN};
        pollers[3 + 2 * i] =
            (struct pollfd){.fd = worker->rank >= 0 ? worker->fds[1] : -1, .events = POLLIN};
    }
    bool sleeping = fake_exchange_prepare_sleep(daemon->exchange);
    pthread_mutex_unlock(&daemon->lock);
    int ready = poll(pollers, 2 + 2 * count, sleeping ? -1 : 0);
    pthread_mutex_lock(&daemon->lock);
    fake_exchange_cancel_sleep(daemon->exchange);
    if (ready <= 0)
        return;
    if (pollers[0].revents)
        accept_worker(daemon);
    if (pollers[1].revents)
        clear(daemon->wake);
    for (uint32_t i = 0; i < count; i++) {
        if (pollers[3 + 2 * i].revents && daemon->workers[i].rank >= 0)
            clear(daemon->workers[i].fds[1]);
        if (pollers[2 + 2 * i].revents && daemon->workers[i].fd >= 0)
            read_worker(daemon, &daemon->workers[i]);
    }
}

static void *run(void *argument)
{
    struct fake_daemon *daemon = argument;
    pthread_mutex_lock(&daemon->lock);
    while (!daemon->stop) {
        serve(daemon);
        while (fake_exchange_step(daemon->exchange))
            ;
    }
    pthread_mutex_unlock(&daemon->lock);
    return NULL;
}

struct fake_daemon *fake_daemon_start(const struct fake_daemon_options *options)
{
    struct fake_daemon *daemon = calloc(1, sizeof(*daemon));
    daemon->options = *options;
    if (!daemon->options.servers)
        daemon->options.servers = 1;
    if (!daemon->options.chunk_bytes)
        daemon->options.chunk_bytes = 4096;
    if (!daemon->options.pinned_bytes)
        daemon->options.pinned_bytes = 256 << 20;
    daemon->directory = suite_make_directory();
    snprintf(daemon->path, sizeof(daemon->path), "%s/socket", daemon->directory);
    struct fake_exchange_io io = {.context = daemon, .ring = fake_ring, .disagree = disagree};
    daemon->exchange = fake_exchange_create(options->seed, &io);
    if (options->recovery)
        fake_exchange_keep(daemon->exchange);
    daemon->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    daemon->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ck_assert_uint_lt(strlen(daemon->path), sizeof(address.sun_path));
    memcpy(address.sun_path, daemon->path, strlen(daemon->path) + 1);
    ck_assert_int_eq(bind(daemon->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(daemon->listener, 16), 0);
    pthread_mutex_init(&daemon->lock, NULL);
    ck_assert_int_eq(pthread_create(&daemon->thread, NULL, run, daemon), 0);
    return daemon;
}

const char *fake_daemon_path(const struct fake_daemon *daemon)
{
    return daemon->path;
}

static void wake(struct fake_daemon *daemon)
{
    uint64_t one = 1;
    ck_assert_int_eq(write(daemon->wake, &one, sizeof(one)), sizeof(one));
}

void fake_daemon_stop(struct fake_daemon *daemon)
{
    pthread_mutex_lock(&daemon->lock);
    daemon->stop = true;
    pthread_mutex_unlock(&daemon->lock);
    wake(daemon);
    pthread_join(daemon->thread, NULL);
    for (uint32_t i = 0; i < daemon->worker_count; i++)
        fake_drop(daemon, &daemon->workers[i]);
    close(daemon->listener);
    close(daemon->wake);
    fake_exchange_destroy(daemon->exchange);
    pthread_mutex_destroy(&daemon->lock);
    suite_remove_directory(daemon->directory);
    free(daemon);
}

void fake_daemon_hold(struct fake_daemon *daemon, bool hold)
{
    pthread_mutex_lock(&daemon->lock);
    fake_exchange_hold(daemon->exchange, hold);
    pthread_mutex_unlock(&daemon->lock);
    wake(daemon);
}

void fake_daemon_fail(struct fake_daemon *daemon, int group, int code, const char *text)
{
    pthread_mutex_lock(&daemon->lock);
    fail_group(daemon, group, code, text);
    pthread_mutex_unlock(&daemon->lock);
}

static void fake_end(struct fake_daemon *daemon, bool deaf, uint32_t deaths)
{
    pthread_mutex_lock(&daemon->lock);
    daemon->deaf = deaf;
    daemon->deaths = deaths;
    for (uint32_t i = 0; i < daemon->worker_count; i++)
        fake_drop(daemon, &daemon->workers[i]);
    pthread_mutex_unlock(&daemon->lock);
    wake(daemon);
}

void fake_daemon_cut(struct fake_daemon *daemon)
{
    fake_end(daemon, true, 0);
}

void fake_daemon_restart(struct fake_daemon *daemon, uint32_t deaths)
{
    fake_end(daemon, false, deaths);
}

void fake_daemon_say(struct fake_daemon *daemon, const char *line)
{
    pthread_mutex_lock(&daemon->lock);
    for (uint32_t i = 0; i < daemon->worker_count; i++)
        send_line(&daemon->workers[i], line, strlen(line));
    pthread_mutex_unlock(&daemon->lock);
}

static uint64_t read_locked(struct fake_daemon *daemon, const uint64_t *value)
{
    pthread_mutex_lock(&daemon->lock);
    uint64_t copy = *value;
    pthread_mutex_unlock(&daemon->lock);
    return copy;
}

uint64_t fake_daemon_groups_closed(struct fake_daemon *daemon)
{
    return read_locked(daemon, &daemon->groups_closed);
}

uint64_t fake_daemon_hellos(struct fake_daemon *daemon)
{
    return read_locked(daemon, &daemon->hellos);
}

uint64_t fake_daemon_returned(struct fake_daemon *daemon)
{
    return read_locked(daemon, &daemon->returned);
}

uint64_t fake_daemon_former(struct fake_daemon *daemon)
{
    return read_locked(daemon, &daemon->former);
}

uint64_t fake_daemon_pings(struct fake_daemon *daemon)
{
    return read_locked(daemon, &daemon->pings);
}

uint64_t fake_daemon_workers_left(struct fake_daemon *daemon)
{
    return read_locked(daemon, &daemon->workers_left);
}

uint64_t fake_daemon_staged_chunks(struct fake_daemon *daemon)
{
    pthread_mutex_lock(&daemon->lock);
    uint64_t chunks = fake_exchange_staged_chunks(daemon->exchange);
    pthread_mutex_unlock(&daemon->lock);
    return chunks;
}
