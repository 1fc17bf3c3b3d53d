# To be sourced, not run: Spark's Kafka connector for scripts/dgx-spark-submit. Needs ROOT of environment.sh.

# The directory of the connector's jars, where `scripts/kafka setup` puts them.
kafka_connector() { echo "${HERMES_KAFKA_JARS:-$ROOT/.kafka}/connector"; }

# Whether spark-submit's arguments "$@", the environment or HERMES_FILE choose the kafka source.
uses_kafka() {
    local argument kind=${HERMES_SOURCE_KIND:-}
    for argument in "$@"; do
        if [[ $argument =~ ^(--conf=)?spark\.hermes\.source\.kind=(.*)$ ]]; then kind=${BASH_REMATCH[2]}; fi
    done
    if [[ $kind ]]; then
        [[ $kind == kafka ]]
    else
        [[ -f ${HERMES_FILE:-} ]] && grep -Eq '^ +kind: *"?kafka"?( |$)' "$HERMES_FILE"
    fi
}

# Whether the arguments name jars themselves; --jars is then the user's, and must hold the connector.
names_jars() {
    local argument
    for argument in "$@"; do
        [[ $argument == --jars || $argument == --jars=* || $argument == --packages* || $argument == spark.jars* ]] && return
    done
    return 1
}

# Prints the connector's jars with commas, if the job reads Kafka, they have been fetched and no others are named.
kafka_jars() {
    local jars=("$(kafka_connector)"/*.jar)
    if uses_kafka "$@" && ! names_jars "$@" && [[ -f ${jars[0]} ]]; then
        (IFS=, && echo "${jars[*]}")
    fi
}
