/* Jobs that have ended on this daemon lately, and how: for the status. Users share the places: when
 * there is none left, whoever has most gives his oldest. Pure. */
#ifndef SERVER_JOBS_ENDED_H
#define SERVER_JOBS_ENDED_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/quota.h"
#include "server/jobs/job.h"

#define ENDED_MAX 32u
#define ENDED_NS 600000000000u /* so long one is kept */

struct ended_job {
    char name[MESSAGE_NAME_BYTES];
    uint64_t lineage;
    uint32_t uid;
    uint32_t world_size;
    bool failed;
    char text[ERROR_TEXT_BYTES]; /* why it failed */
    uint64_t began_ns, ended_ns;
};

struct ended_jobs {
    struct quota places;
    struct ended_job jobs[ENDED_MAX]; /* the first places.used of them, the oldest first */
};

void ended_init(struct ended_jobs *ended);
void ended_clear(struct ended_jobs *ended);
/* Note a job that ends now. Old ones are dropped, and so is an earlier generation of the job. */
void ended_note(struct ended_jobs *ended, const struct job *job, uint64_t now_ns);
bool ended_is_old(const struct ended_job *it, uint64_t now_ns);

#endif
