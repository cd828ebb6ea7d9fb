/* A control thread with real sockets and a stand-in engine, and a worker's end of its socket. */
#ifndef TESTS_LIB_SERVER_CONTROL_DAEMON_H
#define TESTS_LIB_SERVER_CONTROL_DAEMON_H

#include <pthread.h>
#include <stdbool.h>

#include "common/format/message.h"
#include "common/text/line_reader.h"
#include "server/control/control.h"

struct control_daemon {
    struct config config;
    struct log log;
    struct credentials credentials; /* none */
    struct control_options options;
    struct control *control;
    pthread_t thread;
    bool running;
    int result;
    int signal_write; /* the other end of options.signal_fd */
    struct fake_engine *engine;
};

/* A roster of `nodes` servers named a, b, ... of which this is number `self`, with sockets in
 * `directory`; ports[node] 0: bind any. To be changed before control_daemon_start. */
struct control_daemon *control_daemon_create(const char *directory, uint32_t nodes, uint32_t self,
                                             const uint16_t *ports);
/* Before the start: secrets of keys that begin with these bytes, 0: none. */
void control_daemon_set_secrets(struct control_daemon *daemon, uint8_t first, uint8_t second,
                                bool encrypt);
/* Return what the engine was given last to connect to a peer; call it once the daemon has ended. */
const struct engine_peer_connect *control_daemon_peer_connect(const struct control_daemon *daemon);
/* How often the engine was asked for its status. */
uint32_t control_daemon_status_count(const struct control_daemon *daemon);
/* Let the engine take no traces; call it before the start. Traces that it takes have
 * CONTROL_DAEMON_RECORDS records. */
#define CONTROL_DAEMON_RECORDS 5000u
void control_daemon_refuse_traces(struct control_daemon *daemon);
/* Before the start: the engine never says that it has let go of an arena. */
void control_daemon_keep_arenas(struct control_daemon *daemon);
/* control_create's result; on success the thread runs. */
int control_daemon_start(struct control_daemon *daemon, struct error *error);
void control_daemon_signal(struct control_daemon *daemon, int number);
/* Wait until it has ended by itself; its result. */
int control_daemon_join(struct control_daemon *daemon);
/* End it by a signal, if it runs, and free all. */
void control_daemon_free(struct control_daemon *daemon);
/* A TCP socket bound to a free port of 127.0.0.1. */
int control_daemon_bind(uint16_t *port);

struct control_client {
    int fd;
    struct line_reader lines;
    int doorbell;
    uint32_t uid; /* who has connected */
};

/* Connect without a word. */
void control_client_open(struct control_client *client, const struct control_daemon *daemon);
/* Open as another user, if this is root: the kernel has credentials for each thread, so the
 * daemon's threads go on as they are. */
void control_client_open_as(struct control_client *client, const struct control_daemon *daemon,
                            uid_t uid);
void control_client_close(struct control_client *client);
void control_client_write(struct control_client *client, const char *text);
/* The next line, valid until the next call; NULL at the end. Waits for 20 s at most. */
const char *control_client_line(struct control_client *client);
void control_client_hello(struct control_client *client);
/* join with an arena and a doorbell. */
void control_client_join(struct control_client *client, const char *job, unsigned world_size,
                         int rank);
/* Read the next line, which must be of this type; one that says whom the worker waits for is passed
 * over. */
void control_client_expect(struct control_client *client, enum message_type type,
                           struct message *message);

#endif
