#include <arpa/inet.h>
#include <assert.h>
#include <inttypes.h>
#include <net/if.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/config_table.h"

void config_key_allowed(const struct config_key *key, char text[CONFIG_ALLOWED_BYTES])
{
    size_t room = CONFIG_ALLOWED_BYTES;
    if (key->type == CONFIG_BOOLEAN) {
        snprintf(text, room, "true or false");
    } else if (key->type == CONFIG_INTEGER) {
        int used =
            snprintf(text, room, "an integer from %" PRIu64 " to %" PRIu64 "%s%s", key->least,
                     key->most, key->unit ? " " : "", key->unit ? key->unit : "");
        if (key->multiple)
            snprintf(text + used, room - (size_t)used, ", a multiple of %" PRIu64, key->multiple);
    } else if (key->choices) {
        size_t used = 0;
        for (int i = 0; key->choices[i]; i++) {
            const char *before = i == 0 ? "" : key->choices[i + 1] ? ", " : " or ";
            used += (size_t)snprintf(text + used, room - used, "%s\"%s\"", before, key->choices[i]);
        }
    } else if (key->least == key->most) {
        snprintf(text, room, "a string %s", key->shape);
    } else if (key->least <= 1) {
        snprintf(text, room, "a string %s, of at most %" PRIu64 " characters", key->shape,
                 key->most);
    } else {
        snprintf(text, room, "a string %s, of %" PRIu64 " to %" PRIu64 " characters", key->shape,
                 key->least, key->most);
    }
}

/* 0, ERR_INVALID or ERR_MEMORY. */
static int pattern_match(const char *pattern, const char *text)
{
    regex_t expression;
    int failure = regcomp(&expression, pattern, REG_EXTENDED | REG_NOSUB);
    assert(failure == 0 || failure == REG_ESPACE);
    if (failure)
        return ERR_MEMORY;
    failure = regexec(&expression, text, 0, NULL, 0);
    regfree(&expression);
    return failure == 0 ? 0 : failure == REG_ESPACE ? ERR_MEMORY : ERR_INVALID;
}

/* Copy `length` bytes of an address. An address with a colon must be IPv6 and is written in
 * canonical form, so that addresses compare as texts; a link-local one must name its interface. */
static int address_copy(const char *text, size_t length, char *field, size_t width)
{
    char address[CONFIG_ADDRESS_BYTES] = "";
    assert(length < sizeof(address) && length < width);
    memcpy(address, text, length);
    if (strchr(address, ':')) {
        struct in6_addr numeric;
        char zone[CONFIG_ADDRESS_BYTES] = "", *percent = strchr(address, '%');
        if (percent) {
            memcpy(zone, percent, strlen(percent) + 1);
            *percent = 0;
        }
        if (inet_pton(AF_INET6, address, &numeric) != 1 ||
            IN6_IS_ADDR_LINKLOCAL(&numeric) != (percent != NULL) || strlen(zone) > IF_NAMESIZE)
            return ERR_INVALID;
        inet_ntop(AF_INET6, &numeric, address, INET6_ADDRSTRLEN);
        memcpy(address + strlen(address), zone, strlen(zone) + 1);
    }
    memset(field, 0, width);
    memcpy(field, address, strlen(address));
    return 0;
}

static int endpoint_store(const char *text, struct config_server *server)
{
    const char *colon = strrchr(text, ':');
    const char *host = text;
    size_t length = (size_t)(colon - text);
    if (host[0] == '[') {
        host++;
        length -= 2;
    }
    if (length >= sizeof(server->address))
        return ERR_INVALID;
    int failure = address_copy(host, length, server->address, sizeof(server->address));
    if (failure)
        return failure;
    server->port = (uint16_t)strtoul(colon + 1, NULL, 10);
    return 0;
}

static int text_store(const struct config_key *key, const char *text, void *base)
{
    char *field = (char *)base + key->offset;
    size_t length = strlen(text);
    if (key->choices) {
        int i = 0;
        while (key->choices[i] && strcmp(key->choices[i], text) != 0)
            i++;
        if (!key->choices[i])
            return ERR_INVALID;
    } else {
        if (length < key->least || length > key->most)
            return ERR_INVALID;
        int failure = pattern_match(key->pattern, text);
        if (failure)
            return failure;
    }
    switch (key->type) {
    case CONFIG_LEVEL:
        return log_level_parse(text, (enum log_level *)(void *)field);
    case CONFIG_MODE:
        *(uint32_t *)(void *)field = (uint32_t)strtoul(text, NULL, 8);
        return 0;
    case CONFIG_ADDRESS:
        return address_copy(text, length, field, key->width);
    case CONFIG_ENDPOINT:
        return endpoint_store(text, base);
    default:
        assert(length < key->width);
        memset(field, 0, key->width);
        memcpy(field, text, length);
        return 0;
    }
}

static void integer_store(const struct config_key *key, uint64_t number, void *base)
{
    void *field = (char *)base + key->offset;
    switch (key->width) {
    case sizeof(uint16_t):
        *(uint16_t *)field = (uint16_t)number;
        break;
    case sizeof(uint32_t):
        *(uint32_t *)field = (uint32_t)number;
        break;
    default:
        assert(key->width == sizeof(uint64_t));
        *(uint64_t *)field = number;
    }
}

static uint64_t integer_load(const struct config_key *key, const void *base)
{
    const void *field = (const char *)base + key->offset;
    switch (key->width) {
    case sizeof(uint16_t):
        return *(const uint16_t *)field;
    case sizeof(uint32_t):
        return *(const uint32_t *)field;
    default:
        return *(const uint64_t *)field;
    }
}

/* To JSON, 64 and 64.0 and 6.4e1 are one number. */
static int integer_of(const json_t *value, uint64_t *number)
{
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        *number = (uint64_t)json_integer_value(value);
        return 0;
    }
    double real = json_real_value(value);
    if (!json_is_real(value) || real < 0 || real > 0x1p53 || real != (double)(uint64_t)real)
        return ERR_INVALID;
    *number = (uint64_t)real;
    return 0;
}

int config_key_store(const struct config_key *key, const json_t *value, void *base)
{
    if (key->type == CONFIG_BOOLEAN) {
        if (!json_is_boolean(value))
            return ERR_INVALID;
        *(bool *)((char *)base + key->offset) = json_is_true(value);
        return 0;
    }
    if (key->type == CONFIG_INTEGER) {
        uint64_t number;
        if (integer_of(value, &number) || number < key->least || number > key->most ||
            (key->multiple && number % key->multiple))
            return ERR_INVALID;
        integer_store(key, number, base);
        return 0;
    }
    return json_is_string(value) ? text_store(key, json_string_value(value), base) : ERR_INVALID;
}

void config_key_store_default(const struct config_key *key, void *base)
{
    if (key->type == CONFIG_BOOLEAN)
        *(bool *)((char *)base + key->offset) = key->default_number;
    else if (key->type == CONFIG_INTEGER)
        /* 0: config_resolve knows it, and the number is but an example. */
        integer_store(key, key->default_note ? 0 : key->default_number, base);
    else if (key->type == CONFIG_LEVEL)
        log_level_parse(key->default_text, (enum log_level *)(void *)((char *)base + key->offset));
    else if (key->type == CONFIG_MODE)
        *(uint32_t *)(void *)((char *)base + key->offset) =
            (uint32_t)strtoul(key->default_text, NULL, 8);
    else if (key->default_text)
        snprintf((char *)base + key->offset, key->width, "%s", key->default_text);
}

static json_t *endpoint_value(const struct config_server *server)
{
    unsigned port = server->port;
    return strchr(server->address, ':') ? json_sprintf("[%s]:%u", server->address, port)
                                        : json_sprintf("%s:%u", server->address, port);
}

json_t *config_key_value(const struct config_key *key, const void *base)
{
    const char *field = (const char *)base + key->offset;
    switch (key->type) {
    case CONFIG_BOOLEAN:
        return json_boolean(*(const bool *)field);
    case CONFIG_INTEGER:
        return json_integer((json_int_t)integer_load(key, base));
    case CONFIG_LEVEL:
        return json_string(log_level_name(*(const enum log_level *)(const void *)field));
    case CONFIG_MODE:
        return json_sprintf("0%03o", *(const uint32_t *)(const void *)field);
    case CONFIG_ENDPOINT:
        return endpoint_value(base);
    default:
        return json_string(field);
    }
}

json_t *config_key_default(const struct config_key *key)
{
    if (key->type == CONFIG_BOOLEAN)
        return json_boolean(key->default_number);
    if (key->type == CONFIG_INTEGER)
        return json_integer((json_int_t)key->default_number);
    return json_string(key->default_text ? key->default_text : "");
}
