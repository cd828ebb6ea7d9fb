#include <stdlib.h>
#include <string.h>

#include "common/config/config_table.h"

/* Adds every key of the section; 0 or ERR_MEMORY. */
static int print_section(json_t *object, const struct config_section *section, const void *base)
{
    for (size_t i = 0; i < section->key_count; i++) {
        const struct config_key *key = &section->keys[i];
        if (json_object_set_new(object, key->name, config_key_value(key, base)))
            return ERR_MEMORY;
    }
    return 0;
}

static int print_servers(json_t *array, const struct config *config)
{
    for (uint32_t i = 0; i < config->server_count; i++) {
        json_t *object = json_object();
        if (json_array_append_new(array, object) ||
            print_section(object, &config_server_section, &config->servers[i]))
            return ERR_MEMORY;
    }
    return 0;
}

static int print_root(json_t *root, const struct config *config)
{
    if (print_section(root, &config_sections[0], config))
        return ERR_MEMORY;
    json_t *servers = json_array();
    if (json_object_set_new(root, config_server_section.name, servers) ||
        print_servers(servers, config))
        return ERR_MEMORY;
    for (size_t i = 1; i < config_section_count; i++) {
        json_t *object = json_object();
        if (json_object_set_new(root, config_sections[i].name, object) ||
            print_section(object, &config_sections[i], config))
            return ERR_MEMORY;
    }
    return 0;
}

char *config_json_text(const json_t *root)
{
    char *text = json_dumps(root, JSON_INDENT(4));
    size_t length = text ? strlen(text) : 0;
    char *line = text ? realloc(text, length + 2) : NULL;
    if (!line) {
        free(text);
        return NULL;
    }
    memcpy(line + length, "\n", 2);
    return line;
}

char *config_print(const struct config *config)
{
    json_t *root = json_object();
    char *text = root && print_root(root, config) == 0 ? config_json_text(root) : NULL;
    json_decref(root);
    return text;
}
