#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/config_table.h"

/* Every json_*_set_new and append fails on a NULL value, so running out of memory anywhere below
 * comes up as a non-zero sum of results. */

static int schema_put(json_t *object, const char *name, json_t *value)
{
    return json_object_set_new(object, name, value);
}

static int schema_number(json_t *schema, const struct config_key *key)
{
    int failure = schema_put(schema, "type", json_string("integer")) |
                  schema_put(schema, "minimum", json_integer((json_int_t)key->least)) |
                  schema_put(schema, "maximum", json_integer((json_int_t)key->most));
    if (key->multiple)
        failure |= schema_put(schema, "multipleOf", json_integer((json_int_t)key->multiple));
    return failure;
}

static int schema_text(json_t *schema, const struct config_key *key)
{
    int failure = schema_put(schema, "type", json_string("string"));
    if (key->choices) {
        json_t *choices = json_array();
        failure |= schema_put(schema, "enum", choices);
        for (int i = 0; !failure && key->choices[i]; i++)
            failure |= json_array_append_new(choices, json_string(key->choices[i]));
        return failure;
    }
    return failure | schema_put(schema, "minLength", json_integer((json_int_t)key->least)) |
           schema_put(schema, "maxLength", json_integer((json_int_t)key->most)) |
           schema_put(schema, "pattern", json_string(key->pattern));
}

static json_t *schema_key(const struct config_key *key)
{
    json_t *schema = json_object();
    int failure = schema_put(schema, "description",
                             key->unit ? json_sprintf("%s Unit: %s.", key->text, key->unit)
                                       : json_string(key->text));
    if (key->type == CONFIG_INTEGER)
        failure |= schema_number(schema, key);
    else if (key->type == CONFIG_BOOLEAN)
        failure |= schema_put(schema, "type", json_string("boolean"));
    else
        failure |= schema_text(schema, key);
    if (!key->required && !key->default_note)
        failure |= schema_put(schema, "default", config_key_default(key));
    if (!failure)
        return schema;
    json_decref(schema);
    return NULL;
}

/* {"type": "object", "properties": {...}, "required": [...], "additionalProperties": false} */
static json_t *schema_section(const struct config_section *section)
{
    json_t *schema = json_object();
    json_t *properties = json_object();
    json_t *required = json_array();
    int failure = schema_put(schema, "description", json_string(section->text)) |
                  schema_put(schema, "type", json_string("object")) |
                  schema_put(schema, "additionalProperties", json_false()) |
                  schema_put(schema, "properties", properties);
    for (size_t i = 0; !failure && i < section->key_count; i++) {
        const struct config_key *key = &section->keys[i];
        failure |= schema_put(properties, key->name, schema_key(key));
        if (key->required)
            failure |= json_array_append_new(required, json_string(key->name));
    }
    if (json_array_size(required))
        failure |= json_object_set(schema, "required", required);
    json_decref(required);
    if (!failure)
        return schema;
    json_decref(schema);
    return NULL;
}

static json_t *schema_servers(void)
{
    return json_pack("{s:s, s:s, s:i, s:i, s:o, s:{s:{s:{s:{s:i}}, s:[s]}}}", "description",
                     config_server_section.text, "type", "array", "minItems", 1, "maxItems",
                     CONFIG_SERVERS_MAX, "items", schema_section(&config_server_section),
                     /* at least one server whose weight is not 0 */
                     "contains", "not", "properties", "weight", "const", 0, "required", "weight");
}

/* The rules between keys that a schema can express: a roster of several servers does not say which
 * of them is this node; beyond loopback, and for encryption, a secret or certificates are needed;
 * certificates come with a key and an authority; metrics need both an address and a port.
 * config_check.c has the same rules, and those that a schema cannot express. */
#define LOOPBACK                                                                                   \
    "{\"properties\": {\"address\": {\"pattern\": \"^(127\\\\.[0-9.]+|[Ll][Oo][Cc][Aa][Ll]"        \
    "[Hh][Oo][Ss][Tt]|[0:]*:(0*1|0\\\\.0\\\\.0\\\\.1))$\"}}}"

#define GIVEN "\"properties\": {\""
#define NOT_EMPTY "\": {\"minLength\": 1}}}"
#define SECRET "{\"required\": [\"secret_file\"], " GIVEN "secret_file" NOT_EMPTY
#define CERTIFICATE "{\"required\": [\"certificate_file\"], " GIVEN "certificate_file" NOT_EMPTY
#define KEY "{\"required\": [\"key_file\"], " GIVEN "key_file" NOT_EMPTY
#define AUTHORITY "{\"required\": [\"authority_file\"], " GIVEN "authority_file" NOT_EMPTY
#define NO_CERTIFICATES                                                                            \
    "{\"properties\": {\"certificate_file\": {\"maxLength\": 0}, \"key_file\": {\"maxLength\": "   \
    "0}, "                                                                                         \
    "\"authority_file\": {\"maxLength\": 0}}}"
#define ENCRYPTS "{\"properties\": {\"protect\": {\"const\": \"encrypt\"}}}" /* or is absent */
#define CLEAR "{\"properties\": {\"protect\": {\"const\": \"none\"}}}"

static const char rules[] =
    "[{\"if\": {\"required\": [\"servers\"], \"properties\": {\"servers\":"
    "   {\"type\": \"array\", \"minItems\": 2}}},"
    "  \"then\": {\"required\": [\"node\"]}},"
    " {\"if\": {\"properties\": {\"listen\": " LOOPBACK ", \"fabric\": " LOOPBACK "}},"
    "  \"else\": {\"anyOf\": [" SECRET ", {\"allOf\": [" CERTIFICATE ", " ENCRYPTS "]}]}},"
    " {\"anyOf\": [" NO_CERTIFICATES ", {\"allOf\": [" CERTIFICATE ", " KEY ", " AUTHORITY "]}]},"
    " {\"anyOf\": [" SECRET ", " CERTIFICATE ", " CLEAR "]},"
    " {\"properties\": {\"metrics\": {"
    "   \"if\": {\"required\": [\"port\"], \"properties\": {\"port\": {\"not\": {\"const\": 0}}}},"
    "   \"then\": {\"required\": [\"address\"],"
    "    \"properties\": {\"address\": {\"minLength\": 1}}},"
    "   \"else\": {\"properties\": {\"address\": {\"maxLength\": 0}}}}}}]";

char *config_schema(void)
{
    json_t *schema = json_object();
    json_t *rest = schema_section(&config_sections[0]);
    int failure =
        schema_put(schema, "$schema", json_string("https://json-schema.org/draft/2020-12/schema")) |
        schema_put(schema, "title", json_string("Configuration of shoald"));
    if (!rest || failure || json_object_update(schema, rest)) {
        json_decref(rest);
        json_decref(schema);
        return NULL;
    }
    json_decref(rest);
    json_t *properties = json_object_get(schema, "properties");
    failure = schema_put(properties, config_server_section.name, schema_servers());
    for (size_t i = 1; i < config_section_count; i++)
        failure |=
            schema_put(properties, config_sections[i].name, schema_section(&config_sections[i]));
    failure |= schema_put(schema, "allOf", json_loads(rules, 0, NULL));
    char *text = failure ? NULL : config_json_text(schema);
    json_decref(schema);
    return text;
}
