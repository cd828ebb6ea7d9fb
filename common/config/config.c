#include "common/config/config.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/config_report.h"
#include "common/text/json_comments.h"

/* No sensible configuration comes near it; a wrong path (a log, a device) does not fill memory. */
#define CONFIG_FILE_MOST_BYTES (1u << 20)

static void section_defaults(const struct config_section *section, void *base)
{
    for (size_t i = 0; i < section->key_count; i++)
        config_key_store_default(&section->keys[i], base);
}

/* Fill in the defaults; fields whose default depends on other keys stay empty for config_resolve.
 */
static void raw_defaults(struct config *config)
{
    memset(config, 0, sizeof(*config));
    for (size_t i = 0; i < config_section_count; i++)
        section_defaults(&config_sections[i], config);
}

void config_defaults(struct config *config)
{
    raw_defaults(config);
    (void)config_resolve(config); /* without memory the roster stays empty */
}

void config_clear(struct config *config)
{
    free(config->servers);
    memset(config, 0, sizeof(*config));
}

/* jansson's line and column are where the offending token ends; people look for where it begins.
 * The token is what its text quotes after "near". */
static int syntax_column(const json_error_t *error, const char *text, size_t length)
{
    static const char near[] = " near '";
    const char *quote = NULL;
    int column = error->column > 0 ? error->column : 1;
    for (const char *at = error->text; (at = strstr(at, near)); at += strlen(near))
        quote = at + strlen(near);
    size_t token = quote ? strlen(quote) : 0;
    if (token < 2 || error->position < 0 || (size_t)error->position > length ||
        (size_t)error->position < token - 1)
        return column;
    token--; /* the closing quote */
    if (memcmp(text + error->position - token, quote, token) != 0 || memchr(quote, '\n', token))
        return column;
    for (size_t i = 1; i < token; i++)
        column -= ((unsigned char)quote[i] & 0xc0) != 0x80;
    return column > 0 ? column : 1;
}

/* NULL with a problem reported, or the tree. */
static json_t *parse_json(struct config_report *report, const char *text, size_t length)
{
    json_error_t error;
    json_t *root = json_loadb(text, length, JSON_DECODE_ANY, &error);
    /* An integer beyond 64 bits is a wrong value, not wrong syntax. */
    if (!root && json_error_code(&error) == json_error_numeric_overflow)
        root = json_loadb(text, length, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, &error);
    if (root)
        return root;
    /* Some of jansson's allocations fail without a word. */
    if (json_error_code(&error) == json_error_out_of_memory || !error.text[0])
        report->exhausted = true;
    else
        config_report_at(report, error.line, syntax_column(&error, text, length), "%s", error.text);
    return NULL;
}

static const struct config_key *section_find_key(const struct config_section *section,
                                                 const char *name)
{
    for (size_t i = 0; i < section->key_count; i++) {
        if (strcmp(section->keys[i].name, name) == 0)
            return &section->keys[i];
    }
    return NULL;
}

static void report_unknown(struct config_report *report, struct config_pointer *pointer,
                           const struct config_section *section, const char *name)
{
    struct config_pointer nearest = {0};
    config_near_key(section, pointer->text, name, &nearest);
    size_t above = pointer->length;
    config_pointer_push(pointer, name);
    config_report_add(report, "%s: unknown key, the nearest known one is %s", pointer->text,
                      nearest.text);
    config_pointer_cut(pointer, above);
}

static void read_key(struct config_report *report, struct config_pointer *pointer,
                     const struct config_key *key, const json_t *value, void *base)
{
    char allowed[CONFIG_ALLOWED_BYTES];
    size_t above = pointer->length;
    config_pointer_push(pointer, key->name);
    int failure = value ? config_key_store(key, value, base) : ERR_INVALID;
    if (failure == ERR_MEMORY) {
        report->exhausted = true;
    } else if (failure) {
        config_key_allowed(key, allowed);
        config_report_value(report, pointer->text, value, allowed);
    }
    config_pointer_cut(pointer, above);
}

static void read_section(struct config_report *report, struct config_pointer *pointer,
                         const struct config_section *section, json_t *object, void *base)
{
    const char *name;
    json_t *value;
    if (!json_is_object(object)) {
        config_report_value(report, pointer->text, object, "an object");
        return;
    }
    json_object_foreach(object, name, value)
    {
        const struct config_key *key = section_find_key(section, name);
        if (key)
            read_key(report, pointer, key, value, base);
        else
            report_unknown(report, pointer, section, name);
    }
    for (size_t i = 0; i < section->key_count; i++) {
        if (section->keys[i].required && !json_object_get(object, section->keys[i].name))
            read_key(report, pointer, &section->keys[i], NULL, base);
    }
}

static void read_servers(struct config_report *report, struct config_pointer *pointer,
                         json_t *array, struct config *config)
{
    size_t count = json_array_size(array);
    if (!json_is_array(array) || count < 1 || count > CONFIG_SERVERS_MAX) {
        char must_be[64];
        snprintf(must_be, sizeof(must_be), "an array of 1 to %d objects", CONFIG_SERVERS_MAX);
        config_report_value(report, pointer->text, array, must_be);
        return;
    }
    config->servers = calloc(count, sizeof(*config->servers));
    if (!config->servers) {
        report->exhausted = true;
        return;
    }
    config->server_count = (uint32_t)count;
    size_t above = pointer->length;
    for (size_t i = 0; i < count; i++) {
        config_pointer_push_index(pointer, i);
        section_defaults(&config_server_section, &config->servers[i]);
        read_section(report, pointer, &config_server_section, json_array_get(array, i),
                     &config->servers[i]);
        config_pointer_cut(pointer, above);
    }
}

static const struct config_section *find_section(const char *name)
{
    for (size_t i = 1; i < config_section_count; i++) {
        if (strcmp(config_sections[i].name, name) == 0)
            return &config_sections[i];
    }
    return NULL;
}

static void read_member(struct config_report *report, const char *name, json_t *value,
                        struct config *config)
{
    struct config_pointer pointer = {0};
    const struct config_key *key = section_find_key(&config_sections[0], name);
    const struct config_section *section = find_section(name);
    if (key) {
        read_key(report, &pointer, key, value, config);
        return;
    }
    if (!section && strcmp(name, config_server_section.name) != 0) {
        report_unknown(report, &pointer, &config_sections[0], name);
        return;
    }
    config_pointer_push(&pointer, name);
    if (section)
        read_section(report, &pointer, section, value, config);
    else
        read_servers(report, &pointer, value, config);
}

static void read_root(struct config_report *report, json_t *root, struct config *config)
{
    const char *name;
    json_t *value;
    if (!json_is_object(root)) {
        config_report_value(report, "", root, "an object");
        return;
    }
    json_object_foreach(root, name, value)
    {
        read_member(report, name, value, config);
    }
}

/* The section at the pointer, one below the root; NULL: none that is known. */
static const struct config_section *section_at(const char *pointer)
{
    size_t name = strlen(config_server_section.name);
    if (strncmp(pointer + 1, config_server_section.name, name) != 0 || pointer[1 + name] != '/')
        return find_section(pointer + 1);
    return strchr(pointer + 1 + name + 1, '/') ? NULL : &config_server_section;
}

/* Report what is wrong with a value that counts no more: a later one replaces it. */
static void check_replaced(struct config_report *report, const char *pointer, const char *text,
                           size_t length)
{
    struct config_pointer parent = {0};
    const char *name = strrchr(pointer, '/') + 1;
    memcpy(parent.text, pointer, (size_t)(name - 1 - pointer));
    config_pointer_cut(&parent, (size_t)(name - 1 - pointer));
    const struct config_section *section =
        parent.length ? section_at(parent.text) : &config_sections[0];
    const struct config_key *key = section ? section_find_key(section, name) : NULL;
    bool whole_section =
        !parent.length && (find_section(name) || strcmp(name, config_server_section.name) == 0);
    json_t *value = key || whole_section ? parse_json(report, text, length) : NULL;
    if (!value)
        return;
    struct config config;
    struct config_server server;
    json_t *wrong = report->wrong; /* the value that counts may be right */
    raw_defaults(&config);
    report->wrong = json_object();
    if (whole_section)
        read_member(report, name, value, &config);
    else
        read_key(report, &parent, key, value,
                 section == &config_server_section ? (void *)&server : &config);
    json_decref(report->wrong);
    report->wrong = wrong;
    config_clear(&config);
    json_decref(value);
}

static void read_text(struct config *config, const char *text, size_t length,
                      struct config_report *report)
{
    json_t *root = parse_json(report, text, length);
    if (!root)
        return;
    config_scan_doubled(report, text, length, check_replaced);
    read_root(report, root, config);
    bool readable = json_is_object(root);
    json_decref(root);
    if (!readable)
        return;
    if (config_resolve(config))
        report->exhausted = true;
    else
        config_check(config, report);
}

static void parse_text(struct config *config, const char *text, size_t length,
                       struct config_report *report)
{
    char *bare = json_without_comments(text, length);
    if (bare)
        read_text(config, bare, length, report);
    else
        report->exhausted = true;
    free(bare);
}

/* Ends with the report cleared and, unless 0 is returned, with the configuration cleared. */
static int parse_end(struct config *config, struct config_report *report)
{
    int result = report->exhausted ? ERR_MEMORY : report->problems->count ? ERR_CONFIG : 0;
    if (result)
        config_clear(config);
    config_report_clear(report);
    return result;
}

int config_parse(struct config *config, const char *text, const char *name,
                 struct config_problems *problems)
{
    struct config_report report;
    raw_defaults(config);
    if (config_report_init(&report, name, problems))
        report.exhausted = true;
    else
        parse_text(config, text, strlen(text), &report);
    return parse_end(config, &report);
}

/* The file's bytes, the caller's to free; NULL with a problem reported. */
static char *read_file(struct config_report *report, const char *path, size_t *length)
{
    FILE *file = fopen(path, "re");
    if (!file) {
        config_report_add(report, "cannot be opened: %s", strerror(errno));
        return NULL;
    }
    char *bytes = malloc(CONFIG_FILE_MOST_BYTES + 1);
    if (!bytes) {
        report->exhausted = true;
        fclose(file);
        return NULL;
    }
    *length = fread(bytes, 1, CONFIG_FILE_MOST_BYTES + 1, file);
    if (ferror(file))
        config_report_add(report, "cannot be read: %s", strerror(errno));
    else if (*length > CONFIG_FILE_MOST_BYTES)
        config_report_add(report, "is larger than %u bytes, the most that a configuration may have",
                          CONFIG_FILE_MOST_BYTES);
    fclose(file);
    if (report->problems->count == 0 && !report->exhausted)
        return bytes;
    free(bytes);
    return NULL;
}

int config_load(struct config *config, const char *path, struct config_problems *problems)
{
    struct config_report report;
    size_t length = 0;
    raw_defaults(config);
    if (config_report_init(&report, path, problems)) {
        report.exhausted = true;
    } else {
        char *bytes = read_file(&report, path, &length);
        if (bytes)
            parse_text(config, bytes, length, &report);
        free(bytes);
    }
    return parse_end(config, &report);
}
