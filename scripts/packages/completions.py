#!/usr/bin/env python3
"""Writes what completes the programs' options in bash and zsh, out of what --help of each says.

    completions.py FOLDER PROGRAM...    FOLDER/bash/NAME and FOLDER/zsh/_NAME for each program

The text of --help is the table: a line "  -c, --config FILE   what it does" is an option, a line under
"Commands:" a command, and words with commas between are the values that there are. A text in which
no option is found is an error.
"""

import os
import re
import subprocess
import sys

FILES = ("FILE", "PATH")
OPTION = re.compile(r"  (-\w)?(?:, )?(?:(?<![^ ,] )(--[\w-]+))?(?: (\[?[A-Z]+\]?))?(?:  +(\S.*))?$")
COMMAND = re.compile(r"  ([a-z_]+)(?: (\[?[A-Z]+\]?))?  +(\S.*)$")
CONTINUED = re.compile(r" {20,}(\S.*)$")


class Entry:
    """An option, or a command: its names, what its value is called, and what it does."""

    def __init__(self, names, value, text):
        self.names, self.text = names, text or ""
        self.value = (value or "").strip("[]")
        self.optional = (value or "").startswith("[")

    def choices(self):
        return words_of(self.text.partition(":")[0]) if self.value and self.value not in FILES else []

    def summary(self):
        """Return what the option does, without the words in brackets; for a choice, what is chosen."""
        if self.choices():
            return self.names[-1].lstrip("-")
        return re.sub(r" \([^)]*\)", "", self.text).split("; ")[0]


def words_of(text):
    """The words of "one (default), two, or all"; none where the text is something else."""
    found = [re.sub(r"^or ", "", word.strip()) for word in text.replace(" (default)", "").split(",")]
    found = [word for part in found for word in part.split(" or ")]
    return found if len(found) > 1 and all(re.fullmatch(r"\w+", word) for word in found) else []


class Program:
    def __init__(self, path):
        self.name = os.path.basename(path)
        self.options, self.commands, self.words, self.words_are = [], [], [], ""
        text = subprocess.run([path, "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout
        # A program that runs another one completes that one too.
        self.runs_command = "COMMAND [ARGUMENT]" in text.splitlines()[0]
        section, last = "", None
        for line in text.splitlines():
            if not line.startswith(" "):
                section, last = line.rstrip(":") if line.endswith(":") else "", None
                continue
            more = CONTINUED.match(line)
            option = OPTION.match(line) if line.startswith("  -") else None
            command = COMMAND.match(line) if section == "Commands" else None
            if more and last:
                last.text += " " + more[1]
            elif option and (option[1] or option[2]):
                last = Entry([name for name in option.group(1, 2) if name], option[3], option[4])
                self.options.append(last)
            elif command:
                last = Entry([command[1]], command[2], command[3])
                self.commands.append(last)
            elif section == "Collectives":
                self.words_are = "collective"
                self.words += [word for word in re.split(r"[, ]+", line) if word]
        if not self.options:
            sys.exit(f"completions: {path} --help has no options")

    def first_words(self):
        return [command.names[0] for command in self.commands] + self.words


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def bash_values(program):
    """The arms of a case of the option before the word that is completed."""
    for option in program.options:
        if not option.value or option.optional:
            continue
        if option.value in FILES:
            reply = 'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word")'
        elif option.choices():
            reply = f'mapfile -t COMPREPLY < <(compgen -W {quoted(" ".join(option.choices()))} -- "$word")'
        else:
            reply = "COMPREPLY=()"
        yield f"    {' | '.join(option.names)}) {reply}; return ;;"


BASH = """# Completes {name} in bash; made from what {name} --help says.
_{name}()
{{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} i
    # --name=value is three words, and the middle one may be the last.
    if [[ $word == = ]]; then
        word=
    elif [[ $before == = ]]; then
        before=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
{command}    case $before in
{values}
    esac
    local words={options}
    [[ $word == -* ]] || words={first}
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word"){files}
}}
complete -F _{name} {name}
"""

# The first word that is no option, nor an option's value, is another program.
BASH_COMMAND = """    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
        {valued}) [[ ${{COMP_WORDS[i + 1]}} != = ]] || ((i++)); ((i++)) ;;
        --) ((i++)); break ;;
        -*) ;;
        *) break ;;
        esac
    done
    if ((i < COMP_CWORD)); then
        if declare -F _command_offset >/dev/null; then
            _command_offset "$i"
        else
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
        fi
        return
    elif ((i == COMP_CWORD)) && [[ $word != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -c -- "$word")
        return
    fi
"""


def bash(program):
    options = " ".join(name for option in program.options for name in option.names)
    valued = " | ".join(name for option in program.options if option.value for name in option.names)
    files = ""
    if any(command.value in FILES for command in program.commands):
        files = '\n    ((${#COMPREPLY[@]} > 0)) || mapfile -t COMPREPLY < <(compgen -f -- "$word")'
    return BASH.format(
        name=program.name,
        command=BASH_COMMAND.format(valued=valued) if program.runs_command else "",
        values="\n".join(bash_values(program)),
        options=quoted(options),
        first=quoted(" ".join(program.first_words())),
        files=files,
    )


def zsh_text(text):
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def zsh_option(option):
    value = ""
    if option.value:
        action = "_files" if option.value in FILES else f"({' '.join(option.choices())})" if option.choices() else ""
        value = f"{'::' if option.optional else ':'}{option.value}:{action or ' '}"
    for name in option.names:
        others = f"({' '.join(option.names)})" if len(option.names) > 1 else ""
        equals = ("=-" if option.optional else "=") if option.value and name.startswith("--") else ""
        yield quoted(f"{others}{name}{equals}[{zsh_text(option.summary())}]{value}")


def zsh(program):
    arguments = [spec for option in program.options for spec in zsh_option(option)]
    if program.runs_command:
        arguments += ["'(-):command: _command_names -e'", "'*::argument: _normal'"]
    elif program.commands:
        about = " ".join(
            f'{command.names[0]}\\:"{zsh_text(command.summary())}"' for command in program.commands
        )
        arguments += [quoted(f"1:command:(({about}))"), "'*:argument:_files'"]
    elif program.words:
        arguments.append(quoted(f"1:{program.words_are}:({' '.join(program.words)})"))
    # Words behind the other program's name are that program's own.
    first = "_arguments -s -S" if not program.runs_command else "_arguments -s -S -A '-*'"
    lines = " \\\n    ".join([first, *arguments])
    return f"#compdef {program.name}\n# Made from what {program.name} --help says.\n{lines}\n"


def main():
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} FOLDER PROGRAM...")
    for path in sys.argv[2:]:
        program = Program(path)
        for name, text in ((f"bash/{program.name}", bash(program)), (f"zsh/_{program.name}", zsh(program))):
            target = os.path.join(sys.argv[1], name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w", encoding="utf-8") as file:
                file.write(text)


if __name__ == "__main__":
    main()
