#include "worker/launch/launched.h"

#include <stdio.h>
#include <string.h>

#include "common/base/env.h"
#include "common/text/number_text.h"

/* The numbers from 2^32 - 16 on are not of steps of srun: the script of sbatch, the shell of salloc
 * (slurm.h). */
#define SLURM_STEPS_MOST 0xffffffefull

static bool launched_is_step(void)
{
    const char *text = env_text("SLURM_STEP_ID");
    uint64_t step;
    return text && env_text("SLURM_PROCID") &&
           number_text_parse(text, 0, SLURM_STEPS_MOST, &step, NULL) == 0;
}

static const char *launched_variable(const char *name)
{
    return env_text(name) ? name : NULL;
}

/* What makes a long name one of its own is at its end. */
static void launched_set_job(struct launched *launched, const char *name)
{
    size_t length = name ? strlen(name) : 0, most = sizeof(launched->job) - 1;
    if (length)
        snprintf(launched->job, sizeof(launched->job), "%s",
                 length > most ? name + length - most : name);
}

static void launched_read_slurm(struct launched *launched)
{
    const char *job = env_text("SLURM_JOB_ID");
    launched->world_size = launched_variable("SLURM_STEP_NUM_TASKS");
    if (!launched->world_size)
        launched->world_size = launched_variable("SLURM_NTASKS");
    launched->rank = "SLURM_PROCID";
    launched->local_rank = launched_variable("SLURM_LOCALID");
    snprintf(launched->job, sizeof(launched->job), "slurm-%.24s-%.24s", job ? job : "",
             env_text("SLURM_STEP_ID"));
}

void launched_read(struct launched *launched)
{
    *launched = (struct launched){0};
    if (env_text("OMPI_COMM_WORLD_SIZE")) {
        launched->world_size = "OMPI_COMM_WORLD_SIZE";
        launched->rank = launched_variable("OMPI_COMM_WORLD_RANK");
        launched->local_rank = launched_variable("OMPI_COMM_WORLD_LOCAL_RANK");
        launched_set_job(launched, env_text("PMIX_NAMESPACE"));
    } else if (env_text("PMI_SIZE")) {
        launched->world_size = "PMI_SIZE";
        launched->rank = launched_variable("PMI_RANK");
        launched->local_rank = launched_variable("MPI_LOCALRANKID");
        launched_set_job(launched, env_text("PMI_JOBID"));
    } else if (launched_is_step()) {
        launched_read_slurm(launched);
    }
}
