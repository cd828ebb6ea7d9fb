#include "worker/programs/step/step.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/env.h"
#include "common/format/message.h"
#include "common/text/number_text.h"

#define STEP_NUMBER_MOST 0xffffffffll
#define STEP_PORT_FIRST 20000 /* below those that systems give out by themselves */
#define STEP_PORTS 12000
#define STEP_TIMEOUT_MS 300000

static int step_number(const char *name, long long least, long long most, long long *value,
                       struct error *error)
{
    if (!env_text(name))
        return error_set(error, ERR_INVALID, "%s is not set: this is no task of srun's", name);
    return env_integer(name, least, most, 0, value, error);
}

int step_first_host(const char *list, char host[STEP_HOST_BYTES], struct error *error)
{
    size_t used = 0;
    bool inside = false, skipped = false;
    for (const char *at = list; *at && (inside || *at != ','); at++) {
        if (*at == '[' && !inside) {
            inside = true;
            skipped = false;
        } else if (*at == ']' && inside) {
            inside = false;
        } else if (inside && (*at == '-' || *at == ',')) {
            skipped = true; /* further hosts */
        } else if (!inside || !skipped) {
            if (used + 1 >= STEP_HOST_BYTES)
                return error_set(error, ERR_INVALID, "the first host of \"%.200s\" is too long",
                                 list);
            host[used++] = *at;
        }
    }
    host[used] = 0;
    if (used == 0 || inside)
        return error_set(error, ERR_INVALID, "\"%.200s\" is no list of hosts", list);
    return 0;
}

int step_read(struct step *step, struct error *error)
{
    long long job = 0, number = 0, node = 0, nodes = 0, port = 0, timeout_ms = 0;
    *step = (struct step){0};
    const char *list = env_text("SLURM_STEP_NODELIST");
    int code = step_number("SLURM_JOB_ID", 0, STEP_NUMBER_MOST, &job, error);
    if (code == 0)
        code = step_number("SLURM_STEP_ID", 0, STEP_NUMBER_MOST, &number, error);
    if (code == 0)
        code = step_number("SLURM_STEP_NUM_NODES", 1, STEP_NODES_MAX, &nodes, error);
    if (code == 0)
        code = step_number("SLURM_NODEID", 0, nodes - 1, &node, error);
    if (code == 0)
        code = env_integer("SHOAL_STEP_PORT", 1, UINT16_MAX,
                           STEP_PORT_FIRST + (job * 16 + number) % STEP_PORTS, &port, error);
    if (code == 0)
        code = env_integer("SHOAL_TIMEOUT_MS", 1, MESSAGE_TIMEOUT_MAX_MS, STEP_TIMEOUT_MS,
                           &timeout_ms, error);
    if (code == 0 && nodes > 1 && !list) {
        code = error_set(error, ERR_INVALID, "SLURM_STEP_NODELIST is not set");
    } else if (code == 0 && nodes > 1) {
        code = step_first_host(list, step->first_host, error);
        if (code < 0)
            error_prefix(error, "SLURM_STEP_NODELIST");
    }
    snprintf(step->name, sizeof(step->name), "slurm-%lld-%lld", job, number);
    step->node = (uint32_t)node;
    step->nodes = (uint32_t)nodes;
    step->port = (uint16_t)port;
    step->timeout_ms = (uint64_t)timeout_ms;
    return code;
}

/* --- what the nodes tell each other ---------------------------------------------------------- */

static bool step_is_address(const char *text)
{
    char host[STEP_ADDRESS_BYTES];
    const char *colon = strchr(text, ':');
    struct in_addr address;
    uint64_t port;
    if (!colon || (size_t)(colon - text) >= sizeof(host))
        return false;
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = 0;
    return inet_pton(AF_INET, host, &address) == 1 &&
           number_text_parse(colon + 1, 1, UINT16_MAX, &port, NULL) == 0;
}

/* The next word of a text that has one blank between its words, or NULL when there is none or it
 * is too long. */
static const char *step_word(const char **text, char *word, size_t bytes)
{
    size_t length = strcspn(*text, " ");
    if (length == 0 || length >= bytes)
        return NULL;
    memcpy(word, *text, length);
    word[length] = 0;
    *text += length + ((*text)[length] == ' ');
    return word;
}

/* The step's name in front of what is meant for it. */
static int step_check_name(const struct step *step, const char **text, struct error *error)
{
    char name[STEP_NAME_BYTES];
    if (!step_word(text, name, sizeof(name)))
        return error_set(error, ERR_PROTOCOL, "it names no step");
    if (strcmp(name, step->name) != 0)
        return error_set(error, ERR_PROTOCOL, "it is of the step %s, not of %s", name, step->name);
    return 0;
}

void step_coming_write(const struct step *step, const char *address, char *text, uint32_t bytes)
{
    snprintf(text, bytes, "%s %" PRIu32 " %s", step->name, step->node, address);
}

int step_coming_read(const struct step *step, const char *text, uint32_t *node,
                     char address[STEP_ADDRESS_BYTES], struct error *error)
{
    char number[16], word[STEP_ADDRESS_BYTES];
    uint64_t value = 0;
    int code = step_check_name(step, &text, error);
    if (code < 0)
        return code;
    if (!step_word(&text, number, sizeof(number)) ||
        number_text_parse(number, 1, step->nodes - 1, &value, NULL) < 0 ||
        !step_word(&text, word, sizeof(word)) || !step_is_address(word) || *text)
        return error_set(error, ERR_PROTOCOL, "it does not say which node it is, and where");
    *node = (uint32_t)value;
    memcpy(address, word, sizeof(word));
    return 0;
}

int step_roster_init(struct step_roster *roster, uint32_t nodes, struct error *error)
{
    *roster = (struct step_roster){.nodes = nodes};
    roster->addresses = calloc(nodes, sizeof(*roster->addresses));
    return roster->addresses ? 0 : error_set(error, ERR_MEMORY, "out of memory");
}

void step_roster_clear(struct step_roster *roster)
{
    free(roster->addresses);
    *roster = (struct step_roster){0};
}

char *step_roster_write(const struct step *step, const struct step_roster *roster)
{
    size_t bytes =
        STEP_NAME_BYTES + FRESH_SECRET_BYTES + 2 + (size_t)roster->nodes * (STEP_ADDRESS_BYTES + 1);
    char *text = malloc(bytes);
    if (!text)
        return NULL;
    size_t used = (size_t)snprintf(text, bytes, "%s %s", step->name, roster->secret);
    for (uint32_t i = 0; i < roster->nodes; i++)
        used += (size_t)snprintf(text + used, bytes - used, " %s", roster->addresses[i]);
    return text;
}

int step_roster_read(const struct step *step, const char *text, struct step_roster *roster,
                     struct error *error)
{
    int code = step_check_name(step, &text, error);
    if (code < 0)
        return code;
    const char *secret = step_word(&text, roster->secret, sizeof(roster->secret));
    bool good = secret && strlen(secret) == FRESH_SECRET_BYTES - 1 &&
                strspn(secret, "0123456789abcdef") == FRESH_SECRET_BYTES - 1;
    for (uint32_t i = 0; good && i < roster->nodes; i++)
        good = step_word(&text, roster->addresses[i], STEP_ADDRESS_BYTES) &&
               step_is_address(roster->addresses[i]);
    if (!good || *text)
        return error_set(error, ERR_PROTOCOL,
                         "it is not the secret and the address of %" PRIu32 " nodes",
                         roster->nodes);
    return 0;
}

/* --- the daemon ------------------------------------------------------------------------------ */

char *step_config_text(const struct step *step, const struct step_roster *roster,
                       const char *folder, uint64_t pinned_bytes)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return NULL;
    const char *own = roster->addresses[step->node], *colon = strchr(own, ':');
    fprintf(out, "{\n  \"node\": \"node%" PRIu32 "\",\n", step->node);
    fprintf(out, "  \"listen\": { \"address\": \"%.*s\", \"port\": %s },\n", (int)(colon - own),
            own, colon + 1);
    fprintf(out, "  \"socket\": { \"path\": \"%s/shoald.sock\", \"mode\": \"0600\" },\n", folder);
    if (roster->nodes > 1)
        fprintf(out, "  \"secret_file\": \"%s/secret\",\n", folder);
    /* Larger than what workers ask for by themselves, and touched only where used. */
    fprintf(out, "  \"limits\": { \"arena_bytes\": %" PRIu64, UINT64_C(1) << 40);
    if (pinned_bytes)
        fprintf(out, ", \"pinned_bytes\": %" PRIu64, pinned_bytes);
    fprintf(out, " },\n  \"servers\": [");
    for (uint32_t i = 0; i < roster->nodes; i++)
        fprintf(out, "%s\n    { \"name\": \"node%" PRIu32 "\", \"address\": \"%s\" }", i ? "," : "",
                i, roster->addresses[i]);
    fprintf(out, "\n  ]\n}\n");
    bool wrong = ferror(out);
    if (fclose(out) || wrong) {
        free(text);
        return NULL;
    }
    return text;
}
