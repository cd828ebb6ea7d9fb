#include "worker/launch/launched.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/base/env.h"
#include "common/text/number_text.h"

/* The numbers from 2^32 - 16 on are not of steps of srun: the script of sbatch, the shell of salloc
 * (slurm.h). */
#define SLURM_STEPS_MOST 0xffffffefull

const struct launcher launched_table[LAUNCHERS] = {
    {.name = "mpirun",
     .world_size = "OMPI_COMM_WORLD_SIZE",
     .rank = "OMPI_COMM_WORLD_RANK",
     .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .job = "PMIX_NAMESPACE",
     .line = "mpirun -n ",
     .line_rest = " --map-by ppr:1:node shoalrun --hosts HOST,...",
     .of_ranks = true},
    {.name = "mpiexec",
     .world_size = "PMI_SIZE",
     .rank = "PMI_RANK",
     .local_rank = "MPI_LOCALRANKID",
     .local_size = "MPI_LOCALNRANKS",
     .job = "PMI_JOBID",
     .line = "mpiexec -n ",
     .line_rest = " -ppn 1 shoalrun --hosts HOST,...",
     .of_ranks = true},
    {.name = "srun",
     .marked_by = "SLURM_STEP_ID",
     .world_size = "SLURM_STEP_NUM_TASKS",
     .other_world_size = "SLURM_NTASKS",
     .rank = "SLURM_PROCID",
     .local_rank = "SLURM_LOCALID",
     .local_size = "SLURM_STEP_TASKS_PER_NODE",
     .hosts = "SLURM_STEP_NODELIST",
     .ranks = "SLURM_GPUS_ON_NODE",
     .line = "srun -N",
     .line_rest = " --ntasks-per-node=1 shoalrun",
     .of_ranks = true},
    {.name = "SageMaker",
     .marked_by = "SM_HOSTS",
     .hosts = "SM_HOSTS",
     .own_host = "SM_CURRENT_HOST",
     .ranks = "SM_NUM_GPUS",
     .job = "TRAINING_JOB_NAME"},
    {.name = "Kubernetes",
     .marked_by = "JOB_COMPLETION_INDEX",
     .rank = "JOB_COMPLETION_INDEX",
     .job = "SHOAL_JOB"},
};

static const char *launched_variable(const char *name)
{
    return name && env_text(name) ? name : NULL;
}

static bool launcher_is_there(const struct launcher *launcher)
{
    const char *text = env_text(launcher->marked_by ? launcher->marked_by : launcher->world_size);
    uint64_t step;
    if (!text || strcmp(launcher->name, "srun") != 0)
        return text != NULL;
    return env_text(launcher->rank) &&
           number_text_parse(text, 0, SLURM_STEPS_MOST, &step, NULL) == 0;
}

/* Set the job's name; of a long name the end is kept, which tells it from others. */
static void launched_set_job(struct launched *launched, const char *name)
{
    size_t length = name ? strlen(name) : 0, most = sizeof(launched->job) - 1;
    if (length)
        snprintf(launched->job, sizeof(launched->job), "%s",
                 length > most ? name + length - most : name);
}

/* A step that is begun anew has the same number. */
static void launched_set_step(struct launched *launched)
{
    const char *job = env_text("SLURM_JOB_ID"), *again = env_text("SLURM_RESTART_COUNT");
    snprintf(launched->job, sizeof(launched->job), "slurm-%.20s-%.20s%s%.10s", job ? job : "",
             env_text("SLURM_STEP_ID"), again ? "-" : "", again ? again : "");
}

static void launched_take(struct launched *launched, const struct launcher *launcher)
{
    launched->launcher = launcher->name;
    launched->world_size = launched_variable(launcher->world_size);
    if (!launched->world_size)
        launched->world_size = launched_variable(launcher->other_world_size);
    launched->rank = launched_variable(launcher->rank);
    launched->local_rank = launched_variable(launcher->local_rank);
    launched->local_size = launched_variable(launcher->local_size);
    launched->hosts = launched_variable(launcher->hosts);
    launched->own_host = launched_variable(launcher->own_host);
    launched->ranks = launched_variable(launcher->ranks);
    if (launcher->job)
        launched_set_job(launched, env_text(launcher->job));
    else
        launched_set_step(launched);
}

static bool launched_same(const char *one, const char *other)
{
    uint64_t first, second;
    return one && other && number_text_parse(env_text(one), 0, UINT32_MAX, &first, NULL) == 0 &&
           number_text_parse(env_text(other), 0, UINT32_MAX, &second, NULL) == 0 && first == second;
}

static const struct launcher *launched_find(struct launched *launched, bool of_ranks)
{
    const struct launcher *found = NULL;
    *launched = (struct launched){0};
    for (size_t i = 0; i < LAUNCHERS; i++) {
        struct launched other = {0};
        if ((of_ranks && !launched_table[i].of_ranks) || !launcher_is_there(&launched_table[i]))
            continue;
        launched_take(&other, &launched_table[i]);
        if (found && !(other.hosts && launched_same(other.rank, launched->rank) &&
                       launched_same(other.world_size, launched->world_size)))
            continue;
        found = &launched_table[i];
        *launched = other;
    }
    return found;
}

void launched_read(struct launched *launched)
{
    launched_find(launched, true);
}

void launched_read_node(struct launched *launched)
{
    launched_find(launched, false);
}

/* Slurm's count is "2(x3),1": of nodes with the same number, how many they are. */
uint32_t launched_local_size(const struct launched *launched)
{
    const char *text = launched->local_size ? env_text(launched->local_size) : NULL;
    char digits[12] = "";
    uint64_t count;
    if (text)
        snprintf(digits, sizeof(digits), "%.*s", (int)strspn(text, "0123456789"), text);
    return number_text_parse(digits, 1, UINT32_MAX, &count, NULL) == 0 ? (uint32_t)count : 0;
}

uint64_t launched_hash(uint64_t hash, const char *text)
{
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3;
    return hash;
}

uint32_t launched_mark(const char *text)
{
    uint64_t hash = launched_hash(LAUNCHED_HASH, text);
    uint32_t mark = (uint32_t)(hash ^ hash >> 32);
    return *text ? mark + (mark == 0) : 0;
}

/* The words of this process's command line, as far as there is room. */
static void launched_command(char *text, size_t bytes)
{
    FILE *file = fopen("/proc/self/cmdline", "re");
    size_t got = file ? fread(text, 1, bytes - 1, file) : 0;
    if (file)
        fclose(file);
    while (got > 0 && !text[got - 1])
        got--;
    text[got] = 0;
    for (size_t i = 0; i < got; i++)
        if (!text[i])
            text[i] = ' ';
}

int launched_line(char line[LAUNCHED_LINE_BYTES])
{
    struct launched launched;
    const struct launcher *launcher = launched_find(&launched, true);
    uint64_t size = 0;
    uint32_t local = launched_local_size(&launched);
    char start[128] = "shoalrun", command[256];
    line[0] = 0;
    if (!launcher || !launched.world_size ||
        number_text_parse(env_text(launched.world_size), 1, UINT32_MAX, &size, NULL) < 0)
        return 0;
    if (local == 0)
        local = 1;
    uint32_t nodes = (uint32_t)((size + local - 1) / local);
    if (nodes > 1 || launched.hosts) /* the script of sbatch is on one of the nodes alone */
        snprintf(start, sizeof(start), "%s%" PRIu32 "%s", launcher->line, nodes,
                 launcher->line_rest);
    launched_command(command, sizeof(command));
    snprintf(line, LAUNCHED_LINE_BYTES, "%s -n %" PRIu32 " -- %s", start, local, command);
    return 1;
}
