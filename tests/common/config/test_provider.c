#include "common/config/provider.h"

#include <stdio.h>
#include <string.h>

#include "common/config/config.h"
#include "tests/lib/suite.h"

START_TEST(every_choice_is_a_provider_or_auto)
{
    ck_assert_str_eq(provider_choices[0], "auto");
    ck_assert_ptr_null(provider_find("auto"));
    size_t count = 1;
    for (; provider_choices[count]; count++) {
        const struct provider *provider = provider_find(provider_choices[count]);
        ck_assert_ptr_nonnull(provider);
        ck_assert_ptr_eq(provider, &providers[count - 1]);
        ck_assert_str_eq(provider->name, provider_choices[count]);
        ck_assert_uint_gt(strlen(provider->provider), 0);
        ck_assert_uint_lt(strlen(provider->name), CONFIG_NAME_BYTES);
    }
    ck_assert_uint_eq(count, 1 + provider_count);
}
END_TEST

START_TEST(other_names_are_none)
{
    static const char *const names[] = {"", "TCP", "udp", "tcp;", "tc", "tcp;ofi_rxd", "sockets"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        ck_assert_ptr_null(provider_find(names[i]));
}
END_TEST

static int parse(const char *name, struct config *config, struct config_problems *problems)
{
    char text[128];
    snprintf(text, sizeof(text), "{\"fabric\":{\"provider\":\"%s\"}}", name);
    return config_parse(config, text, "it", problems);
}

/* Whether the machine has it is another matter, which only the start can tell. */
START_TEST(the_configuration_takes_every_choice)
{
    for (size_t i = 0; provider_choices[i]; i++) {
        struct config config;
        struct config_problems problems;
        ck_assert_int_eq(parse(provider_choices[i], &config, &problems), 0);
        ck_assert_str_eq(config.provider, provider_choices[i]);
        config_problems_clear(&problems);
        config_clear(&config);
    }
}
END_TEST

START_TEST(the_configuration_refuses_the_others)
{
    static const char *const names[] = {"udp", "TCP", "tcp;ofi_rxd", "carrier_pigeon"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct config config;
        struct config_problems problems;
        ck_assert_int_eq(parse(names[i], &config, &problems), ERR_CONFIG);
        ck_assert_uint_eq(problems.count, 1);
        ck_assert_msg(
            strstr(problems.lines[0], "/fabric/provider: got \"") &&
                strstr(problems.lines[0], "must be \"auto\", \"efa\", \"verbs\", \"tcp\""),
            "%s", problems.lines[0]);
        config_problems_clear(&problems);
        config_clear(&config);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("provider");
    TCase *tests = tcase_create("provider");
    tcase_add_test(tests, every_choice_is_a_provider_or_auto);
    tcase_add_test(tests, other_names_are_none);
    tcase_add_test(tests, the_configuration_takes_every_choice);
    tcase_add_test(tests, the_configuration_refuses_the_others);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
