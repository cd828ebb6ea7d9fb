/* The nodes of a run that shoalrun is started for once on each: which they are and which is this
 * one, told by --hosts or by who has started shoalrun, and the address of this one. Nodes say
 * nothing to each other before their daemons run: all that they must agree on follows from the
 * list of hosts and the mark of the run. */
#ifndef WORKER_PROGRAMS_SHOALRUN_NODES_H
#define WORKER_PROGRAMS_SHOALRUN_NODES_H

#include <sys/socket.h>

#include "worker/programs/shoalrun/launcher.h"

struct nodes {
    uint32_t count;              /* 1: this machine alone, of which nothing else is said */
    uint32_t self;               /* this one */
    uint32_t ranks;              /* that its launcher wants here; 0: it does not say */
    struct launch_host *hosts;   /* [count] */
    char mark[LAUNCH_JOB_BYTES]; /* of the run, the same on all nodes; "": none is known */
    uint16_t port;               /* of each daemon; the next is PyTorch's store's, then data's */
    char listen[LAUNCH_HOST_BYTES], address[LAUNCH_HOST_BYTES]; /* nodes_find_address's */
};

/* Read the nodes that the options and the variables name. ERR_INVALID says what contradicts, and
 * what to write. nodes_clear in every case. */
int nodes_read(struct nodes *nodes, const struct launch_options *options, struct error *error);
/* Find where this node's daemon listens, and the address that it gives the others: of the interface
 * that SHOAL_INTERFACE names, else of the one towards the other nodes. Names that are not known yet
 * are waited for, up to SHOAL_TIMEOUT_MS, with a line about it. */
int nodes_find_address(struct nodes *nodes, struct error *error);
/* Write a numeric address as the system has it, at a port. Returns its length; 0: it is no number.
 */
socklen_t nodes_parse_address(const char *text, uint16_t port, struct sockaddr_storage *address);
/* Set the interface behind link-local addresses (fe80::1%eth0), by which this node reaches the
 * others. Each node of a list may call its interface by another name. */
void nodes_set_interface(struct launch_host *hosts, uint32_t count, const char *interface);
void nodes_clear(struct nodes *nodes);

/* Return the name that the user has given to the job, by --job or SHOAL_JOB; NULL: none. A rank of
 * an outer run has that run's name in SHOAL_JOB, which is not the inner run's. */
const char *nodes_job(const struct launch_options *options);

/* Write the hosts of a list into a new array: names divided by commas, with numbers in brackets as
 * Slurm has them ("gpu[03-07,12],cpu1"), or a JSON array of names. ERR_INVALID. */
int nodes_expand(const char *list, struct launch_host **hosts, uint32_t *count,
                 struct error *error);

#endif
