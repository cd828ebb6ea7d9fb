/* The daemons that shoalrun starts for one job: a configuration, a Unix socket and a log for each
 * in the run's folder, and sockets that listen before the daemons run, so that ports are known and
 * nobody has to wait for a daemon. */
#ifndef WORKER_PROGRAMS_SHOALRUN_EMBEDDED_H
#define WORKER_PROGRAMS_SHOALRUN_EMBEDDED_H

#include <limits.h>

#include "worker/programs/shoalrun/folder.h"
#include "worker/programs/shoalrun/launcher.h"
#include "worker/programs/shoalrun/supervisor.h"

struct embedded_daemon {
    char name[LAUNCH_JOB_BYTES];
    char socket_path[108]; /* what sun_path holds */
    char config_path[128];
    char log_path[128];
    int unix_socket, tcp_socket; /* until the daemon has them; then -1 */
    uint16_t *port;              /* of embedded.ports; 0: not chosen yet */
};

struct embedded {
    const struct folder *folder;
    struct launch_config config;     /* its strings and hosts are the caller's */
    uint32_t first, count;           /* these of the configuration's nodes are started here */
    struct embedded_daemon *daemons; /* [count] */
    uint16_t *ports;                 /* of all nodes of the configuration */
    int alive_read, alive_write;     /* the daemons end when the writing end closes */
    int page;                        /* keeps the port of the page; or -1 */
    bool recovers; /* the daemons have `recovery`: one that is killed is replaced */
};

/* embedded_clear in every case from here on. */
void embedded_init(struct embedded *embedded);
/* Make the sockets of the nodes `first` to `first + count - 1` of a configuration; a port 0, or
 * none, becomes one that is free. ERR_REFUSED: the port is taken. */
int embedded_listen(struct embedded *embedded, const struct folder *folder,
                    const struct launch_config *config, uint32_t first, uint32_t count,
                    struct error *error);
/* Write the files that these daemons read. config.ports and hosts are known by now. extra_path: of
 * a file whose keys come on top, or NULL. */
int embedded_configure(struct embedded *embedded, const char *secret, const char *extra_path,
                       struct error *error);
/* Open the pipe with whose end the daemons end. */
int embedded_open_pipe(struct embedded *embedded, struct error *error);
/* Starts shoald number i as the supervisor's children[i]. */
int embedded_start(struct embedded *embedded, struct supervisor *supervisor, bool verbose,
                   char *const *environment, struct error *error);
/* Starts number i once more, in the place of one that has ended: at the same port and path. */
int embedded_restart(struct embedded *embedded, uint32_t i, struct supervisor *supervisor,
                     bool verbose, char *const *environment, struct error *error);
/* Write the last lines of the logs of the daemons that have failed to stderr; supervisor NULL: of
 * all. */
void embedded_print_logs(const struct embedded *embedded, const struct supervisor *supervisor);
/* Close what is open. */
void embedded_clear(struct embedded *embedded);

#endif
