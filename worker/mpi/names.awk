# This makes, from names.txt, an object for each constant, and for each function one that fails by its name. All are weak: what
# other files of this folder define takes their place.
BEGIN {
    print "#include <stdint.h>\n\n#include \"worker/mpi/absent.h\"\n"
}
/^MPIX?_/ {
    own = $1
    sub(/_/, "ABI_", own)
    if (own ~ /[a-z]/) {
        printf "int %s(void);\n__attribute__((weak)) int %s(void)\n{\n    return absent_called(%d);\n}\n", own, own, count
        names = names "    \"" $1 "\",\n"
        count++
    } else {
        printf "extern const uint64_t %s;\n__attribute__((weak)) const uint64_t %s = ABSENT_VALUE + %d;\n", own, own, NR
    }
}
END {
    printf "\nconst char *const absent_names[] = {\n%s};\nconst int absent_count = %d;\n", names, count
}
