# To be sourced, not run: what the scripts share. Sets ROOT and VENV, and defines functions; changes nothing else by itself.
#
#   source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
NO_JAVA="no Java 17 or newer was found (JAVA_HOME, PATH, /usr/lib/jvm); run: sudo apt-get install openjdk-17-jre-headless"

# One plain line about what happens, on stderr, so that stdout stays the program's.
say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# Says what is wrong and what to do, and ends the script.
fail() {
    say "error: $*"
    exit 1
}

# Prints the home directory of the Java that $1 runs, if that is version 17 or newer. Asking it is the only sure way: links and
# shims may lead nowhere.
java_home_of() {
    local properties major
    properties=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    major=$(sed -n 's/^ *java\.specification\.version = //p' <<<"$properties")
    [[ $major =~ ^[0-9]+$ && $major -ge 17 ]] || return 1
    sed -n 's/^ *java\.home = //p' <<<"$properties"
}

# Sets and exports JAVA_HOME: the one that is set, else the java on PATH, else one below /usr/lib/jvm. Fails without a word if
# none of them is version 17 or newer.
use_java() {
    local java home
    for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java /usr/lib/jvm/*/bin/java; do
        if home=$(java_home_of "$java"); then
            export JAVA_HOME=$home
            return 0
        fi
    done
    return 1
}

# Makes this shell use .venv, after scripts/setup: its commands first on PATH, and Spark's workers on its interpreter.
use_venv() {
    [[ -x $VENV/bin/python ]] || fail "$VENV is missing; run scripts/setup"
    export VIRTUAL_ENV=$VENV PATH=$VENV/bin:$PATH
    export PYSPARK_PYTHON=$VENV/bin/python PYSPARK_DRIVER_PYTHON=$VENV/bin/python
    use_java || fail "$NO_JAVA"
}
