#!/bin/sh
# Measures weir beside Apache Flink and prints markdown tables: about fifteen minutes on two idle cores.
# Needs Go, a JDK of version 17 or later, and Maven, which downloads Flink on the first run.
#
#   ./bench/flink/run.sh                                   everything
#   ./bench/flink/run.sh -w '^W1/' -rounds 3               one workload; -list shows them all
#   ./bench/flink/run.sh -short                            does it work?
#   ./bench/flink/run.sh -json bench/flink/results.json    for the tables of the documentation, see cmd/chart
#   JAVA_OPTS='-Xms2g -Xmx2g -XX:+UseParallelGC' ./bench/flink/run.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
: "${JAVA_OPTS:=-Xms2g -Xmx2g}"

jar=$here/target/flink-async-bench-1.jar
if [ ! -f "$jar" ] || [ ! -d "$here/target/lib" ] || [ -n "$(find "$here/pom.xml" "$here/src" -newer "$jar" -print -quit)" ]; then
	mvn -q -B -f "$here/pom.xml" package 1>&2
fi
export CLASSPATH="$jar:$here/target/lib/*"
cd "$here/../.."
exec go run ./bench/cmd/flink -java "java $JAVA_OPTS --add-opens java.base/java.util=ALL-UNNAMED" "$@"
