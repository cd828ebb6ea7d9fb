#include "worker/device/device_system.h"

#include "tests/lib/suite.h"

#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void put(const char *directory, const char *address, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", directory, address);
    mkdir(path, 0700);
    snprintf(path, sizeof(path), "%s/%s/%s", directory, address, name);
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

START_TEST(test_node)
{
    char *directory = suite_make_directory();
    put(directory, "0000:1b:00.0", "numa_node", "1\n");
    put(directory, "0000:af:00.0", "numa_node", "0\n");
    put(directory, "0000:01:00.0", "numa_node", "-1\n");
    put(directory, "0000:02:00.0", "numa_node", "");
    put(directory, "0000:03:00.0", "numa_node", "one\n");
    put(directory, "0000:04:00.0", "numa_node", "99999\n");
    ck_assert_int_eq(device_system_node(directory, "0000:1b:00.0"), 1);
    ck_assert_int_eq(device_system_node(directory, "0000:1B:00.0"), 1);
    ck_assert_int_eq(device_system_node(directory, "0000:AF:00.0"), 0);
    ck_assert_int_eq(device_system_node(directory, "0000:01:00.0"), -1);
    ck_assert_int_eq(device_system_node(directory, "0000:02:00.0"), -1);
    ck_assert_int_eq(device_system_node(directory, "0000:03:00.0"), -1);
    ck_assert_int_eq(device_system_node(directory, "0000:04:00.0"), -1);
    ck_assert_int_eq(device_system_node(directory, "0000:05:00.0"), -1);
    ck_assert_int_eq(device_system_node(directory, "an address that is far too long for one"), -1);
    ck_assert_int_eq(device_system_node(NULL, "ffff:ff:1f.7"), -1);
    suite_remove_directory(directory);
}
END_TEST

START_TEST(test_link_rate)
{
    static const struct {
        const char *speed, *width;
        uint64_t rate;
    } links[] = {{"32.0 GT/s PCIe\n", "16\n", 64000000000},
                 {"16.0 GT/s PCIe\n", "16\n", 32000000000},
                 {"8.0 GT/s PCIe\n", "4\n", 4000000000},
                 {"2.5 GT/s PCIe\n", "1\n", 250000000},
                 {"64 GT/s\n", "8\n", 64000000000},
                 {"Unknown\n", "16\n", 0},
                 {"32.0 GT/s PCIe\n", "0\n", 0},
                 {"32.0 GT/s PCIe\n", "255\n", 0},
                 {"32.0 GT/s PCIe\n", "", 0},
                 {"32\n", "16\n", 0}};
    char *directory = suite_make_directory();
    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
        char address[32];
        snprintf(address, sizeof(address), "0000:%02zx:00.0", i);
        put(directory, address, "max_link_speed", links[i].speed);
        put(directory, address, "max_link_width", links[i].width);
        ck_assert_uint_eq(device_system_link_rate(directory, address), links[i].rate);
    }
    ck_assert_uint_eq(device_system_link_rate(directory, "0000:ff:00.0"), 0);
    suite_remove_directory(directory);
}
END_TEST

START_TEST(test_prefer)
{
    size_t bytes = 1 << 20;
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    device_system_prefer(memory, bytes, -1);
    device_system_prefer(memory, bytes, 1000);
    int mode = -1;
    unsigned long nodes[16] = {0};
    if (syscall(SYS_get_mempolicy, &mode, nodes, 1024ul, memory, MPOL_F_ADDR) != 0) {
        suite_skip("device_system", "memory policies are not for this process");
    } else {
        ck_assert_int_eq(mode, MPOL_DEFAULT);
        device_system_prefer(memory, bytes, 0);
        ck_assert_int_eq(syscall(SYS_get_mempolicy, &mode, nodes, 1024ul, memory, MPOL_F_ADDR), 0);
        ck_assert_int_eq(mode, MPOL_PREFERRED);
        ck_assert_uint_eq(nodes[0], 1);
    }
    memset(memory, 1, bytes); /* whatever was asked for */
    munmap(memory, bytes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_system");
    TCase *core = tcase_create("core");
    tcase_add_test(core, test_node);
    tcase_add_test(core, test_link_rate);
    tcase_add_test(core, test_prefer);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
