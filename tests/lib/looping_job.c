#include "tests/lib/looping_job.h"

#include "tests/lib/suite.h"

void looping_job_start(struct looping_job *job, struct cluster *cluster, uint32_t ranks_per_node)
{
    job->count = cluster->count * ranks_per_node;
    ck_assert_uint_le(job->count, LOOPING_JOB_RANKS_MAX);
    stop_file_create(&job->stop);
    const char *argv[] = {CLUSTER_HELPER, "loop", job->stop.path, NULL};
    cluster_job(cluster, "undisturbed", ranks_per_node, argv, job->ranks);
    for (uint32_t rank = 0; rank < job->count; rank++)
        ck_assert(process_wait_text(job->ranks[rank], "running", CLUSTER_PATIENCE_MS));
}

void looping_job_end(struct looping_job *job)
{
    stop_file_raise(&job->stop);
    ck_assert_int_eq(cluster_job_end(job->ranks, job->count), 0);
    stop_file_free(&job->stop);
}
