/* How the nodes of a step come to know each other. The first node listens at the step's port; each
 * other one comes to it, says where its own daemon will listen, and gets the roster. All they say
 * is sealed by munge. Calls step.h, munge.h and common/. */
#ifndef WORKER_PROGRAMS_STEP_MEET_H
#define WORKER_PROGRAMS_STEP_MEET_H

#include "worker/programs/step/step.h"

/* Fills a roster that was made for the step's nodes. *listener: the socket on which this node's
 * daemon is to listen, the caller's to close. alive: a descriptor that hangs up when nobody waits
 * for this any more: ERR_STATE. ERR_TIMEOUT names who is missing; ERR_PROTOCOL, ERR_REFUSED,
 * ERR_UNSUPPORTED, ERR_SYSTEM, ERR_MEMORY. */
int meet(const struct step *step, int alive, struct step_roster *roster, int *listener,
         struct error *error);

#endif
