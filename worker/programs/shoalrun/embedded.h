/* The daemons that shoalrun starts for one job: a private folder with a configuration, a Unix
 * socket and a log for each, and sockets that listen before the daemons run, so that ports are
 * known and nobody has to wait for a daemon. */
#ifndef WORKER_PROGRAMS_SHOALRUN_EMBEDDED_H
#define WORKER_PROGRAMS_SHOALRUN_EMBEDDED_H

#include <limits.h>

#include "worker/programs/shoalrun/launcher.h"
#include "worker/programs/shoalrun/supervisor.h"

struct embedded_daemon {
    char name[LAUNCH_JOB_BYTES];
    char socket_path[108]; /* what sun_path holds */
    char config_path[128];
    char log_path[128];
    int unix_socket, tcp_socket; /* until the daemon has them; then -1 */
    uint16_t port;               /* 0: not chosen yet */
};

struct embedded {
    char directory[80]; /* "" when there is none */
    struct embedded_daemon *daemons;
    uint32_t count;
    int alive_read, alive_write; /* the daemons end when the writing end closes */
    int page;                    /* keeps the port of the page; or -1 */
    int lock;                    /* on a file in the folder, the daemons' too; or -1 */
    bool recovers;               /* the daemons have `recovery`: one that is killed is replaced */
};

/* shoald beside this program, or "shoald" for PATH. */
void embedded_program(char path[PATH_MAX]);
/* Makes a folder under `parent`, with the sockets and configurations of the daemons. Folders that
 * runs of this user which were killed have not removed there are removed before. embedded_clear in
 * every case. */
int embedded_prepare(struct embedded *embedded, const struct launch_options *options,
                     const char *parent, struct error *error);
/* Starts shoald number i as the supervisor's children[i]. */
int embedded_start(struct embedded *embedded, struct supervisor *supervisor, bool verbose,
                   char *const *environment, struct error *error);
/* Starts number i once more, in the place of one that has ended: at the same port and path. */
int embedded_restart(struct embedded *embedded, uint32_t i, struct supervisor *supervisor,
                     bool verbose, char *const *environment, struct error *error);
/* The last lines of each daemon's log, on stderr. */
void embedded_print_logs(const struct embedded *embedded);
/* Removes the folder and everything in it. */
void embedded_clear(struct embedded *embedded);

#endif
