#include <stdio.h>
#include <stdlib.h>

#include "common/config/config_table.h"

static const char introduction[] =
    "// The configuration of shoald: shoald.json(5). Every key has its default, and stands here "
    "behind //, which makes a line\n"
    "// a comment. To set a key take its // away; two keys of one object want a comma between "
    "them. What is wrong with\n"
    "// the file is said by: shoald --check-config /etc/shoal/shoald.json\n"
    "{\n";

/* The roster as a comment: a default would be of no use, since a roster names machines. */
static const char servers_example[] =
    "    //\"servers\": [{\"name\": \"a\", \"address\": \"192.0.2.1:7070\"},\n"
    "    //            {\"name\": \"b\", \"address\": \"192.0.2.2:7070\", \"weight\": 1}],\n";

/* A value that can be set where the default depends on other keys; a new reference. */
static json_t *key_example(const struct config_key *key)
{
    switch (key->type) {
    case CONFIG_CHOICE:
        return json_string(key->choices[0]);
    case CONFIG_ADDRESS:
        return json_string("127.0.0.1");
    case CONFIG_TEXT:
        return json_string("a");
    default:
        return config_key_default(key);
    }
}

/* "key": value, behind what depends on other keys in words. 0 or ERR_MEMORY. */
static int commented_print_value(FILE *out, const struct config_key *key, const char *indent)
{
    if (key->default_note) {
        char lead[32], more[32];
        snprintf(lead, sizeof(lead), "%s// Default: ", indent);
        snprintf(more, sizeof(more), "%s// ", indent);
        config_print_lines(out, lead, more, key->default_note);
    }
    json_t *value = key->default_note ? key_example(key) : config_key_default(key);
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    json_decref(value);
    if (!text)
        return ERR_MEMORY;
    fprintf(out, "%s//\"%s\": %s", indent, key->name, text);
    free(text);
    return 0;
}

/* 0 or ERR_MEMORY. `behind` each key: a comma, where an object follows that is always there. */
static int commented_print_keys(FILE *out, const struct config_section *section, const char *indent,
                                const char *behind)
{
    char lead[32];
    int failure = 0;
    snprintf(lead, sizeof(lead), "%s// ", indent);
    for (size_t i = 0; i < section->key_count; i++) {
        const struct config_key *key = &section->keys[i];
        if (i > 0)
            fputc('\n', out);
        config_print_lines(out, lead, lead, key->text);
        failure |= commented_print_value(out, key, indent);
        fprintf(out, "%s\n", behind);
    }
    return failure;
}

static void commented_print_servers(FILE *out)
{
    const struct config_section *section = &config_server_section;
    config_print_lines(out, "    // ", "    // ", section->text);
    for (size_t i = 0; i < section->key_count; i++) {
        char lead[64];
        snprintf(lead, sizeof(lead), "    // * `%s`: ", section->keys[i].name);
        config_print_lines(out, lead, "    //   ", section->keys[i].text);
    }
    fputs(servers_example, out);
}

static int commented_print(FILE *out)
{
    fputs(introduction, out);
    int failure = commented_print_keys(out, &config_sections[0], "    ", ",");
    fputc('\n', out);
    commented_print_servers(out);
    for (size_t i = 1; i < config_section_count; i++) {
        const struct config_section *section = &config_sections[i];
        fputc('\n', out);
        config_print_lines(out, "    // ", "    // ", section->text);
        fprintf(out, "    \"%s\": {\n", section->name);
        failure |= commented_print_keys(out, section, "        ", "");
        fprintf(out, "    }%s\n", i + 1 < config_section_count ? "," : "");
    }
    fputs("}\n", out);
    return failure;
}

char *config_commented(void)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return NULL;
    int failure = commented_print(out) | ferror(out);
    if (fclose(out) || failure) {
        free(text);
        return NULL;
    }
    return text;
}
