#include "server/shoalctl/shoalctl_why.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/shown.h"
#include "common/format/message.h"
#include "server/shoalctl/shoalctl_print.h"

#define NAME_BYTES 128
#define TEXT_BYTES 512

/* --- the parts of the document ---------------------------------------------------------------- */

static double why_number(const json_t *why, const char *key)
{
    return json_number_value(json_object_get(why, key));
}

static long long why_count(const json_t *why, const char *key)
{
    return json_integer_value(json_object_get(why, key));
}

static void why_name(const json_t *why, const char *key, char name[NAME_BYTES])
{
    const char *value = json_string_value(json_object_get(why, key));
    shown_copy(name, NAME_BYTES, value ? value : "-");
}

/* --- the lines -------------------------------------------------------------------------------- */

/* A sentence for each kind: %R is "rank 3 on node b", %N the node, %T "to node a". */
static const struct {
    const char *kind, *text;
} sentences[] = {
    {"rank late", "%R starts late: it computes longer than the others"},
    {"rank drains slowly", "%R starts in time, but hands its data over, or takes results, slowly"},
    {"node late", "all ranks of node %N start late: they compute longer than those of other nodes"},
    {"link slow", "the link from node %N%T is slow: its ranks are in time, their data is not"},
    {"receiver slow", "node %N takes slowly what the others send: its link, or its daemon"},
    {"server slow", "the daemon of node %N sums slowly, or does not get to run"},
    {"nobody", "nobody: no rank, link or server is behind the others"},
    {"unknown", "not known yet: there were too few collectives lately"},
};

static const char *why_sentence(const json_t *why)
{
    const char *kind = json_string_value(json_object_get(why, "kind"));
    for (size_t i = 0; kind && i < sizeof(sentences) / sizeof(sentences[0]); i++) {
        if (strcmp(kind, sentences[i].kind) == 0)
            return sentences[i].text;
    }
    return NULL;
}

static void why_part(const json_t *why, char which, char part[TEXT_BYTES])
{
    char node[NAME_BYTES], to[NAME_BYTES];
    why_name(why, "of_node", node);
    why_name(why, "to_node", to);
    if (which == 'R')
        snprintf(part, TEXT_BYTES, "rank %lld on node %s", why_count(why, "rank"), node);
    else if (which == 'N')
        snprintf(part, TEXT_BYTES, "%s", node);
    else if (json_is_string(json_object_get(why, "to_node")))
        snprintf(part, TEXT_BYTES, " to node %s", to);
    else
        part[0] = '\0';
}

static void why_print_sentence(FILE *out, const json_t *why)
{
    const char *text = why_sentence(why);
    char part[TEXT_BYTES];
    fprintf(out, "who        ");
    if (!text) {
        why_name(why, "kind", part);
        fprintf(out, "%s\n", part);
        return;
    }
    for (; *text; text++) {
        if (*text == '%') {
            why_part(why, *++text, part);
            fputs(part, out);
        } else {
            fputc(*text, out);
        }
    }
    fputc('\n', out);
}

static void why_print_head(FILE *out, const json_t *why)
{
    char job[NAME_BYTES], name[NAME_BYTES];
    const json_t *silent = json_object_get(why, "silent_nodes"), *node;
    long long step = why_count(why, "step_collectives");
    size_t i;
    why_name(why, "job", job);
    if (step > 1)
        fprintf(out, "job        %s, steps of %.1f ms, %lld collectives each", job,
                why_number(why, "step_ms"), step);
    else
        fprintf(out, "job        %s, a collective each %.1f ms", job, why_number(why, "step_ms"));
    json_array_foreach((json_t *)silent, i, node)
    {
        const char *text = json_string_value(node);
        shown_copy(name, sizeof(name), text ? text : "-");
        fprintf(out, "%s%s", i ? ", " : "; no answer of node ", name);
        if (i == 3 && json_array_size(silent) > 4) {
            fprintf(out, " and %zu more", json_array_size(silent) - 4);
            break;
        }
    }
    fputc('\n', out);
}

void shoalctl_print_why(FILE *out, const json_t *why)
{
    bool named = json_is_string(json_object_get(why, "of_node"));
    double step_ms = why_number(why, "step_ms"), lost_ms = why_number(why, "lost_ms");
    why_print_head(out, why);
    why_print_sentence(out, why);
    if (!named) {
        fprintf(out, "how often  -\nhow much   -\nwithout    -\n");
        return;
    }
    fprintf(out, "how often  last in %lld of %lld collectives, in %.1f s\n",
            why_count(why, "times"), why_count(why, "collectives"), why_number(why, "window_s"));
    bool sure = !json_is_false(json_object_get(why, "sure"));
    fprintf(out, "how much   the others wait %.1f ms of each %.1f ms for that alone%s\n", lost_ms,
            step_ms, sure ? "" : ", its results not counted");
    fprintf(out, "without    %s%.1f ms, %.0f %% less\n", sure ? "" : "about ",
            why_number(why, "without_ms"), step_ms > 0 ? 100 * lost_ms / step_ms : 0);
}

/* --- asking ----------------------------------------------------------------------------------- */

int shoalctl_why(struct conversation *talk, const char *job, bool json, struct error *error)
{
    struct message message = {.type = MESSAGE_WHY};
    size_t length;
    json_t *why;
    snprintf(message.job, sizeof(message.job), "%s", job);
    char *line = message_encode(&message, &length);
    if (!line)
        return error_set(error, ERR_MEMORY, "no memory for a question");
    int result = line_send(talk, line, error);
    free(line);
    if (result == 0)
        result = object_receive(talk, "why", TALK_ANSWER_MS, &why, error);
    if (result != 0)
        return result;
    if (json) {
        json_dumpf(why, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        fputc('\n', stdout);
    } else {
        shoalctl_print_why(stdout, why);
    }
    json_decref(why);
    return 0;
}
