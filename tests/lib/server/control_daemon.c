#include "tests/lib/server/control_daemon.h"

#include <arpa/inet.h>
#include <check.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/format/arena.h"
#include "tests/lib/tls_pair.h"

#define WAIT_MS 60000 /* a backstop */

/* --- the stand-in engine: everything works at once. Used by the control thread alone. */

#define FAKE_ARENAS 64u
#define FAKE_TRACES 16

struct fake_arena {
    uint64_t job;
    uint32_t rank, worker;
    struct arena arena;
    int doorbells[2];
};

struct fake_engine {
    int descriptor;
    void *first, **last;
    struct transport_info info;
    struct fake_arena arenas[FAKE_ARENAS];
    uint32_t arena_count;
    _Atomic uint32_t status_count;
    uint64_t turns;
    struct trace *traces[FAKE_TRACES]; /* being taken */
    bool refuse_traces;
    bool keep_arenas;
    struct engine_peer_connect peer_connect; /* the last */
};

static struct fake_engine *fake(const struct engine *engine)
{
    return (struct fake_engine *)(uintptr_t)engine;
}

static struct engine_event *fake_add(struct engine *engine, enum engine_event_type type)
{
    struct engine_event *event = calloc(1, sizeof(*event));
    event->type = type;
    *fake(engine)->last = event;
    fake(engine)->last = &event->next;
    eventfd_write(fake(engine)->descriptor, 1);
    return event;
}

static int fake_descriptor(const struct engine *engine)
{
    return fake(engine)->descriptor;
}

static struct engine_event *fake_next(struct engine *engine)
{
    struct fake_engine *self = fake(engine);
    struct engine_event *event = self->first;
    eventfd_t count;
    if (!event) {
        eventfd_read(self->descriptor, &count);
        return NULL;
    }
    self->first = event->next;
    if (!self->first)
        self->last = &self->first;
    return event;
}

static void fake_event_free(struct engine_event *event)
{
    trace_free(event->trace);
    free(event);
}

static const struct transport_info *fake_info(const struct engine *engine)
{
    return &fake(engine)->info;
}

static void fake_address(const struct engine *engine, uint8_t address[TRANSPORT_ADDRESS_BYTES],
                         uint32_t *bytes)
{
    (void)engine;
    memcpy(address, "addr", 4);
    *bytes = 4;
}

static void fake_add_peer_up(struct engine *engine, const struct engine_peer_connect *peer)
{
    struct engine_event *event = fake_add(engine, ENGINE_PEER_UP);
    event->node = peer->node;
    event->connection = peer->connection;
}

static void fake_peer_connect(struct engine *engine, const struct engine_peer_connect *peer)
{
    fake(engine)->peer_connect = *peer;
    if (peer->address_bytes == 4 && memcmp(peer->address, "addr", 4) == 0 &&
        memcmp(peer->receive_token, peer->send_token, TRANSPORT_TOKEN_BYTES) != 0)
        fake_add_peer_up(engine, peer);
}

static void fake_release(struct fake_engine *self, uint32_t index)
{
    arena_unmap(&self->arenas[index].arena);
    close(self->arenas[index].doorbells[0]);
    close(self->arenas[index].doorbells[1]);
    if (!self->keep_arenas)
        fake_add((struct engine *)self, ENGINE_WORKER_RELEASED)->worker =
            self->arenas[index].worker;
    self->arenas[index] = self->arenas[--self->arena_count];
}

/* End those with this number, or of this job. */
static void fake_traces_end(struct engine *engine, uint32_t number, uint64_t job,
                            enum trace_end end)
{
    for (uint32_t i = 0; i < FAKE_TRACES; i++) {
        struct trace *trace = fake(engine)->traces[i];
        if (!trace || (trace->number != number && trace->job != job))
            continue;
        trace->end = end;
        trace->ended_ns = trace->began_ns + 1000;
        fake(engine)->traces[i] = NULL;
        fake_add(engine, ENGINE_TRACED)->trace = trace;
    }
}

/* Records without a meaning, so many of them that they are read in several parts. */
static void fake_trace_start(struct engine *engine, struct trace *trace)
{
    if (fake(engine)->refuse_traces) {
        struct engine_event *event = fake_add(engine, ENGINE_TRACED);
        event->trace = trace;
        event->code = ERR_STATE;
        snprintf(event->text, sizeof(event->text), "no traces today");
        return;
    }
    uint32_t place = 0;
    while (place < FAKE_TRACES && fake(engine)->traces[place])
        place++;
    if (place == FAKE_TRACES) {
        ck_abort_msg("more traces than a daemon takes");
        return;
    }
    fake(engine)->traces[place] = trace;
    trace->began_ns = 1000;
    for (uint32_t i = 0; i < CONTROL_DAEMON_RECORDS; i++)
        trace_add(trace, &(struct trace_record){.begin_ns = 1000 + i,
                                                .end_ns = 2000 + i,
                                                .sequence = i == 0 ? UINT64_MAX : i,
                                                .peer = i % 2 ? i : TRACE_NO_PEER});
}

static void fake_job_close(struct engine *engine, uint64_t job)
{
    fake_traces_end(engine, 0, job, TRACE_END_JOB_CLOSED);
    for (uint32_t i = fake(engine)->arena_count; i-- > 0;) {
        if (fake(engine)->arenas[i].job == job)
            fake_release(fake(engine), i);
    }
}

static void fake_attach(struct engine *engine, uint64_t job, const struct engine_attach *attach)
{
    struct fake_engine *self = fake(engine);
    ck_assert_uint_lt(self->arena_count, FAKE_ARENAS);
    self->arenas[self->arena_count++] =
        (struct fake_arena){job,
                            attach->rank,
                            attach->worker,
                            attach->arena,
                            {attach->submission_doorbell, attach->completion_doorbell}};
}

static void fake_detach(struct engine *engine, uint64_t job, uint32_t rank)
{
    for (uint32_t i = fake(engine)->arena_count; i-- > 0;) {
        if (fake(engine)->arenas[i].job == job && fake(engine)->arenas[i].rank == rank)
            fake_release(fake(engine), i);
    }
    struct engine_event *event = fake_add(engine, ENGINE_WORKER_DETACHED);
    event->job = job;
    event->rank = rank;
}

static void fake_answer(struct engine *engine, enum engine_event_type type,
                        const struct engine_command *command)
{
    struct engine_event *event = fake_add(engine, type);
    event->job = command->job;
    event->group = command->group;
    if (type == ENGINE_SEGMENT_OPENED)
        event->segment = command->segment.number;
}

static void fake_command(struct engine *engine, const struct engine_command *command)
{
    switch (command->kind) {
    case COMMAND_PEER_CONNECT:
        fake_peer_connect(engine, &command->peer_connect);
        break;
    case COMMAND_JOB_OPEN:
        ck_assert_uint_eq(command->roster->job, command->job);
        fake_answer(engine, ENGINE_JOB_OPENED, command);
        break;
    case COMMAND_JOB_CLOSE:
        fake_job_close(engine, command->job);
        break;
    case COMMAND_GROUP_OPEN:
        fake_answer(engine, ENGINE_GROUP_OPENED, command);
        break;
    case COMMAND_SEGMENT_OPEN:
        munmap(command->segment.base, command->segment.bytes); /* nobody writes to it */
        fake_answer(engine, ENGINE_SEGMENT_OPENED, command);
        break;
    case COMMAND_WORKER_ATTACH:
        fake_attach(engine, command->job, &command->attach);
        break;
    case COMMAND_WORKER_DETACH:
        fake_detach(engine, command->job, command->rank);
        break;
    case COMMAND_DRAIN:
        fake_add(engine, ENGINE_IDLE);
        break;
    case COMMAND_TRACE_START:
        fake_trace_start(engine, command->trace);
        break;
    case COMMAND_TRACE_STOP:
        fake_traces_end(engine, command->trace_number, 0, TRACE_END_ASKED);
        break;
    case COMMAND_STOP:
    case COMMAND_PEER_ADMIT:
    case COMMAND_PEER_DISCONNECT:
    case COMMAND_JOB_FAIL:
    case COMMAND_GROUP_CLOSE:
    case COMMAND_GROUP_FAIL:
    case COMMAND_RANK_DEPARTED:
    case COMMAND_SEGMENT_CLOSE:
    case COMMAND_LATE_QUERY:
        break;
    }
}

static uint64_t fake_turns(struct engine *engine)
{
    return ++fake(engine)->turns;
}

static int fake_status(struct engine *engine, struct engine_status *status)
{
    fake(engine)->status_count++;
    *status = (struct engine_status){.workers = fake(engine)->arena_count};
    return 0;
}

static void fake_status_clear(struct engine_status *status)
{
    (void)status;
}

static struct control_engine fake_create(struct control_daemon *daemon)
{
    struct fake_engine *self = calloc(1, sizeof(*self));
    self->descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    self->last = &self->first;
    snprintf(self->info.provider, sizeof(self->info.provider), "fake");
    snprintf(self->info.version, sizeof(self->info.version), "fake 1");
    daemon->engine = self;
    return (struct control_engine){
        .engine = (struct engine *)self,
        .event_descriptor = fake_descriptor,
        .next_event = fake_next,
        .event_free = fake_event_free,
        .transport_info = fake_info,
        .fabric_address = fake_address,
        .command = fake_command,
        .turns = fake_turns,
        .status = fake_status,
        .status_clear = fake_status_clear,
    };
}

static void fake_free(struct fake_engine *self)
{
    while (self->arena_count > 0)
        fake_release(self, 0);
    while (self->first)
        fake_event_free(fake_next((struct engine *)self));
    for (uint32_t i = 0; i < FAKE_TRACES; i++)
        trace_free(self->traces[i]);
    close(self->descriptor);
    free(self);
}

/* --- the daemon */

int control_daemon_bind(uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

struct control_daemon *control_daemon_create(const char *directory, uint32_t nodes, uint32_t self,
                                             const uint16_t *ports)
{
    struct control_daemon *daemon = calloc(1, sizeof(*daemon));
    struct config *config = &daemon->config;
    int ends[2];
    ck_assert_int_eq(auth_init(NULL), 0);
    config_defaults(config);
    free(config->servers);
    config->servers = calloc(nodes, sizeof(*config->servers));
    config->server_count = nodes;
    config->self = self;
    for (uint32_t i = 0; i < nodes; i++) {
        snprintf(config->servers[i].name, CONFIG_NAME_BYTES, "%c", (char)('a' + i));
        snprintf(config->servers[i].address, CONFIG_NAME_BYTES, "127.0.0.1");
        config->servers[i].port = ports[i];
        config->servers[i].weight = 1;
    }
    snprintf(config->node, sizeof(config->node), "%c", (char)('a' + self));
    snprintf(config->socket_path, sizeof(config->socket_path), "%s/%c.sock", directory,
             (char)('a' + self));
    snprintf(config->listen_address, sizeof(config->listen_address), "127.0.0.1");
    config->listen_port = ports[self];
    config->socket_mode = 0600;
    log_init(&daemon->log, "test", LOG_LEVEL_DEBUG, -1, false);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    daemon->signal_write = ends[1];
    daemon->options = (struct control_options){
        .config = config,
        .log = &daemon->log,
        .credentials = &daemon->credentials,
        .engine = fake_create(daemon),
        .instruction_set = "scalar",
        .topology = "1 core",
        .listen_fd = -1,
        .socket_fd = -1,
        .parent_fd = -1,
        .signal_fd = ends[0],
        .alive_ms = 50,
    };
    return daemon;
}

static void *control_daemon_run(void *argument)
{
    struct control_daemon *daemon = argument;
    daemon->result = control_run(daemon->control);
    return NULL;
}

void control_daemon_set_secrets(struct control_daemon *daemon, uint8_t first, uint8_t second,
                                bool encrypt)
{
    struct secrets secrets = tls_pair_secrets(first, second);
    ck_assert_int_eq(credentials_set(&daemon->credentials, &secrets, encrypt, NULL), 0);
}

const struct engine_peer_connect *control_daemon_peer_connect(const struct control_daemon *daemon)
{
    return &daemon->engine->peer_connect;
}

uint32_t control_daemon_status_count(const struct control_daemon *daemon)
{
    return daemon->engine->status_count;
}

void control_daemon_keep_arenas(struct control_daemon *daemon)
{
    daemon->engine->keep_arenas = true;
}

void control_daemon_refuse_traces(struct control_daemon *daemon)
{
    daemon->engine->refuse_traces = true;
}

int control_daemon_start(struct control_daemon *daemon, struct error *error)
{
    int result = control_create(&daemon->control, &daemon->options, error);
    daemon->options.signal_fd = -1; /* taken over, in every case */
    if (result < 0)
        return result;
    ck_assert_int_eq(pthread_create(&daemon->thread, NULL, control_daemon_run, daemon), 0);
    daemon->running = true;
    return 0;
}

void control_daemon_signal(struct control_daemon *daemon, int number)
{
    struct signalfd_siginfo info = {.ssi_signo = (uint32_t)number};
    ck_assert_int_eq(write(daemon->signal_write, &info, sizeof(info)), (ssize_t)sizeof(info));
}

int control_daemon_join(struct control_daemon *daemon)
{
    ck_assert(daemon->running);
    pthread_join(daemon->thread, NULL);
    daemon->running = false;
    control_free(daemon->control);
    daemon->control = NULL;
    return daemon->result;
}

void control_daemon_free(struct control_daemon *daemon)
{
    if (daemon->running) {
        control_daemon_signal(daemon, SIGTERM);
        control_daemon_join(daemon);
    }
    if (daemon->options.signal_fd >= 0)
        close(daemon->options.signal_fd);
    close(daemon->signal_write);
    fake_free(daemon->engine);
    config_clear(&daemon->config);
    credentials_clear(&daemon->credentials);
    free(daemon);
}

/* --- a worker's end */

void control_client_open(struct control_client *client, const struct control_daemon *daemon)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", daemon->config.socket_path);
    client->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    client->doorbell = -1;
    client->uid = geteuid();
    line_reader_init(&client->lines, MESSAGE_LINE_BYTES);
    ck_assert_int_eq(connect(client->fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

void control_client_close(struct control_client *client)
{
    close(client->fd);
    if (client->doorbell >= 0)
        close(client->doorbell);
    line_reader_clear(&client->lines);
}

void control_client_write(struct control_client *client, const char *text)
{
    ssize_t count = send(client->fd, text, strlen(text), MSG_NOSIGNAL);
    ck_assert_int_eq(count, (ssize_t)strlen(text));
}

const char *control_client_line(struct control_client *client)
{
    struct error error;
    char *line, bytes[4096];
    size_t length;
    int result;
    while ((result = line_reader_next(&client->lines, &line, &length, &error)) == 0) {
        struct pollfd wait = {client->fd, POLLIN, 0};
        ck_assert_msg(poll(&wait, 1, WAIT_MS) == 1, "the daemon says nothing");
        ssize_t count = recv(client->fd, bytes, sizeof(bytes), 0);
        if (count <= 0)
            return NULL;
        ck_assert_int_eq(line_reader_feed(&client->lines, bytes, (size_t)count, &error), 0);
    }
    ck_assert_int_eq(result, 1);
    return line;
}

void control_client_expect(struct control_client *client, enum message_type type,
                           struct message *message)
{
    struct error error = {0};
    const char *line;
    bool passed_over;
    do {
        line = control_client_line(client);
        ck_assert_msg(line != NULL, "the end in place of %s", message_type_name(type));
        ck_assert_msg(message_decode(message, MESSAGE_TO_WORKER, line, strlen(line), &error) == 0,
                      "%s: %s", line, error.text);
        /* The daemon says whom a worker waits for after 10 s, which a busy machine may take. */
        passed_over = message->type == MESSAGE_WAITING && type != MESSAGE_WAITING;
        if (passed_over)
            message_clear(message);
    } while (passed_over);
    ck_assert_msg(message->type == type, "%s in place of %s", line, message_type_name(type));
    message_clear(message);
}

void control_client_hello(struct control_client *client)
{
    struct message answer;
    control_client_write(client,
                         "{\"type\":\"hello\",\"protocol\":3,\"software\":\"test\",\"pid\":1}\n");
    control_client_expect(client, MESSAGE_DAEMON_HELLO, &answer);
}

/* Become the user, in this thread alone; libc would change all threads. */
static void become(uid_t uid)
{
    if (uid != geteuid())
        ck_assert_int_eq(syscall(SYS_setresuid, -1, uid, -1), 0);
}

void control_client_open_as(struct control_client *client, const struct control_daemon *daemon,
                            uid_t uid)
{
    uid_t own = geteuid();
    become(uid);
    control_client_open(client, daemon);
    become(own);
}

void control_client_join(struct control_client *client, const char *job, unsigned world_size,
                         int rank)
{
    struct arena arena;
    struct error error = {0};
    int fds[2];
    char line[256];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(fds))];
    } ancillary = {0};
    ck_assert_msg(arena_create(&arena, ARENA_LEAST_BYTES, 64, &fds[0], &error) == 0, "%s",
                  error.text);
    fds[1] = client->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    snprintf(line, sizeof(line),
             "{\"type\":\"join\",\"job\":\"%s\",\"world_size\":%u,\"rank\":%d,\"local_rank\":-1,"
             "\"timeout_ms\":15000}\n",
             job, world_size, rank);
    struct iovec part = {line, strlen(line)};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = ancillary.bytes,
                            .msg_controllen = sizeof(ancillary.bytes)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(fds));
    memcpy(CMSG_DATA(rights), fds, sizeof(fds));
    ck_assert_int_eq(sendmsg(client->fd, &header, MSG_NOSIGNAL), (ssize_t)part.iov_len);
    arena_unmap(&arena);
    close(fds[0]);
}
