/* What Slurm says of a step of srun to the daemons that its nodes start for it. Pure but for the
 * environment. Calls common/. */
#ifndef WORKER_PROGRAMS_STEP_STEP_H
#define WORKER_PROGRAMS_STEP_STEP_H

#include <stdint.h>

#include "common/base/error.h"
#include "worker/programs/step/fresh_secret.h"

#define STEP_NODES_MAX 4096u
#define STEP_NAME_BYTES 64
#define STEP_HOST_BYTES 256
#define STEP_ADDRESS_BYTES 32 /* "255.255.255.255:65535" */

struct step {
    char name[STEP_NAME_BYTES]; /* "slurm-JOB-STEP" */
    uint32_t node, nodes;
    char first_host[STEP_HOST_BYTES]; /* of the node that all others come to */
    uint16_t port;                    /* where they do */
    uint64_t timeout_ms;
};

/* Slurm's variables, SHOAL_STEP_PORT and SHOAL_TIMEOUT_MS. ERR_INVALID names the one that is
 * missing or makes no sense. */
int step_read(struct step *step, struct error *error);

/* The first host of Slurm's list: "gpu[03-07,12],cpu1" gives "gpu03". ERR_INVALID. */
int step_first_host(const char *list, char host[STEP_HOST_BYTES], struct error *error);

/* What a node tells the first one: where its daemon will listen. One line without its end. */
void step_coming_write(const struct step *step, const char *address, char *text, uint32_t bytes);
/* The node's number and its address, which is an IPv4 address and a port. ERR_PROTOCOL when the
 * text makes no sense or is of another step. */
int step_coming_read(const struct step *step, const char *text, uint32_t *node,
                     char address[STEP_ADDRESS_BYTES], struct error *error);

/* Who they all are, and what their daemons prove to each other. */
struct step_roster {
    uint32_t nodes;
    char secret[FRESH_SECRET_BYTES];
    char (*addresses)[STEP_ADDRESS_BYTES]; /* [nodes] */
};
/* ERR_MEMORY. step_roster_clear in every case. */
int step_roster_init(struct step_roster *roster, uint32_t nodes, struct error *error);
void step_roster_clear(struct step_roster *roster);
/* What the first node answers, the caller's to free; NULL: out of memory. */
char *step_roster_write(const struct step *step, const struct step_roster *roster);
/* Into a roster with as many nodes. ERR_PROTOCOL. */
int step_roster_read(const struct step *step, const char *text, struct step_roster *roster,
                     struct error *error);

/* The configuration of this node's daemon, the caller's to free; NULL: out of memory. folder: with
 * the socket, shoald.sock, and, of several nodes, the secret. pinned_bytes 0: the default. */
char *step_config_text(const struct step *step, const struct step_roster *roster,
                       const char *folder, uint64_t pinned_bytes);

#endif
